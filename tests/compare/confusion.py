"""Results of `sisctl compare` for recordings with known faults, as the table of docs/compare.md.

PYTHONPATH=client/python python3 -m tests.compare.confusion writes it there again, with SIS_RECORDED_DATA set and
//client/python:sis_v1 built.
"""

import pathlib
import random
import re
from collections import Counter

from sis.diagnose import compare, read_file

from tests.compare import recordings
from tests.compare.cases import CASES, Case, cut

NONE = "none"


def said(base, number):
    """The report of a case."""
    files = zip("ab", CASES[number].make(base, random.Random(number)), strict=True)
    a, b = (read_file(name, recordings.as_text(cut(responses))) for name, responses in files)
    return compare(a, b).as_json()


def reports(base):
    return [said(base, number) for number in range(len(CASES))]


def faults_of(report):
    """Returns the named faults, each with the only sequences that have it."""
    return [(check["name"], tuple(check["sequences"])) for check in report["checks"] if check["outcome"] == "fault"]


def is_right(case: Case, faults):
    if not case.fault:
        return not faults
    return faults in ([(case.fault, case.responses)], [(case.or_else, case.responses)])


def name(faults):
    return " and ".join(fault for fault, _ in faults) or NONE


def column(of_cases):
    """Returns for each injected kind of fault how often each fault was named, and in the right sequences. `of_cases` are
    reports(...)."""
    kinds = {}
    for case, report in zip(CASES, of_cases, strict=True):
        faults = faults_of(report)
        kinds.setdefault(case.fault or NONE, Counter())["right" if is_right(case, faults) else name(faults)] += 1
    return kinds


def table(columns):
    """columns: {name of a base: column(...)}."""
    lines = ["| recordings of | cases told right | others |", "|---|---|---|"]
    for base, kinds in columns.items():
        right = sum(said["right"] for said in kinds.values())
        others = [
            f"`{made}`: `{fault}` {count}"
            for made, said in kinds.items()
            for fault, count in sorted(said.items())
            if fault != "right"
        ]
        lines.append(f"| {base} | {right} of {len(CASES)} | {'; '.join(others) or NONE} |")
    return lines


def rows_of(document):
    """The rows of the table in a document, by the name of their base."""
    rows = re.search(r"^\| recordings of[^\n]*\n\|---[^\n]*\n((\|[^\n]*\n)*)", document, flags=re.MULTILINE)[1]
    return {line.split("|")[1].strip(): line for line in rows.splitlines()}


def main():
    columns = {name: column(reports(base)) for name, base in recordings.bases().items()}
    path = pathlib.Path("docs/compare.md")
    new = "\n".join(table(columns)) + "\n"
    path.write_text(re.sub(r"\| recordings of[^\n]*\n(\|[^\n]*\n)*", new, path.read_text()))
    print(new)


if __name__ == "__main__":
    main()
