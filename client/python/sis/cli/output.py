"""Output of the commands: tables for people, JSON for programs, errors. Exit codes: 0 done, 1 failed, refused or no
answer, 2 wrong usage, 3 a fault found."""

from __future__ import annotations

import enum
import importlib.util
import json
import math
import operator
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, NoReturn, Sequence, Union

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from sis._plain_json import plain

if TYPE_CHECKING:
    from sis import MissingReason, RunStatus, Verdict

FAILED = 1
FAULT_FOUND = 3


class Output(str, enum.Enum):
    table = "table"
    json = "json"


# The option of a command that prints either.
OUTPUT = typer.Option(
    Output.table, "--output", "-o", show_default=False, help="Form of the output: table (the default) or json."
)

# Text without markup.
Cell = Union[str, int, Text]

# Colours and width are the terminal's. A pipe or a file gets no colours, and rows of up to 1000 columns.
console = Console(highlight=False, soft_wrap=False)
if not console.is_terminal:
    console = Console(highlight=False, width=1000)


def print_output(output: Output, value: Any, parts: Iterable[RenderableType]) -> None:
    """Prints `parts`, or as JSON `value`: dataclasses, named tuples, enums, numpy arrays and collections of them.
    Numbers that are not finite become null."""
    if output is Output.json:
        print(json.dumps(plain(value), indent=2, ensure_ascii=False))
        return
    for part in parts:
        console.print(part)


def fail(message: str) -> NoReturn:
    """Ends the command with one line on standard error."""
    typer.echo(f"sisctl: {message}", err=True)
    raise typer.Exit(FAILED)


def need(module: str, extra: str = "cli") -> None:
    """Fails if a package of an extra is not installed."""
    if importlib.util.find_spec(module) is None:
        fail(f"this needs {module}: pip install 'sis-ratio[{extra}]'")


def of(name: str, text: Callable[[Any], Cell] = str) -> Callable[[Any], Cell]:
    """Returns the function from the item of a row to a cell: the text of the item's attribute `name`, which may have
    dots."""
    value = operator.attrgetter(name)
    return lambda item: text(value(item))


def or_dash(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


class Rows:
    """A table with a row for each item. It leaves out columns in a narrow terminal."""

    def __init__(
        self,
        columns: Mapping[str, Callable[[Any], Cell]],
        items: Iterable[Any],
        left: Sequence[str] = (),
        first_to_go: Sequence[str] = (),
    ) -> None:
        """Makes a table.

        Args:
            columns: Functions from an item to a cell, by title.
            items: The items.
            left: Columns with text, which wraps.
            first_to_go: Columns to leave out, in this order.
        """
        self._columns = columns
        self._items = list(items)
        self._left = left
        self._first_to_go = first_to_go

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._table(())
        for count in range(len(self._first_to_go) + 1):
            shown = self._table(self._first_to_go[:count])
            if Measurement.get(console, options.update(width=1000), shown).maximum <= options.max_width:
                break
        yield shown

    def _table(self, left_out: Sequence[str]) -> Table:
        made = Table(box=None, pad_edge=False, header_style="bold")
        shown = {title: cell for title, cell in self._columns.items() if title not in left_out}
        for title in shown:
            text = title in self._left
            made.add_column(title, justify="left" if text else "right", no_wrap=not text, overflow="fold")
        for item in self._items:
            made.add_row(*(_text(cell(item)) for cell in shown.values()))
        return made


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def properties(rows: Mapping[str, Cell]) -> Table:
    """Makes a table of names and values."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(name, _text(value))
    return made


def _scaled(value: float, base: float, units: Sequence[str]) -> str:
    if not math.isfinite(value):
        return "-"
    unit = units[0]
    for unit in units:
        if abs(value) < base - 0.5 or unit is units[-1]:
            break
        value /= base
    # Up to 1023 of a unit: not 1.02e+03.
    text = f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def count_text(count: float) -> str:
    """Formats a count: 950, 12.3 k, 4.56 M."""
    return _scaled(count, 1000, ("", "k", "M", "G", "T"))


def bytes_text(size: float) -> str:
    """Formats a size: 950 B, 1.5 GiB."""
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def share_text(share: float) -> str:
    """Formats a number in [0, 1]: 83.4%."""
    if not math.isfinite(share):
        return "-"
    percent = 100 * share
    if percent != 0 and abs(percent) < 0.1:
        return f"{percent:.2g}%"
    # A share below 1 must not read as 100%.
    return f"{min(percent, 99.99):.2f}%" if 99.95 < percent < 100 else f"{percent:.1f}%"


def number_text(number: float) -> str:
    """Formats a number: 0.0781, 1.2e-05."""
    return f"{number:.3g}" if math.isfinite(number) else "-"


def duration_text(seconds: float) -> str:
    """Formats a time: 45 s, 12 min, 3.5 h, 2.1 days."""
    if not math.isfinite(seconds):
        return "-"
    for limit, size, form in ((90, 1, "{:.0f} s"), (90 * 60, 60, "{:.0f} min"), (36 * 3600, 3600, "{:.1f} h")):
        if seconds < limit:
            return form.format(seconds / size)
    return f"{seconds / 86400:.1f} days"


_VERDICTS = {
    "HEALTHY": ("healthy", "green"),
    "WORTH_A_LOOK": ("! look", "yellow"),
    "BROKEN": ("!! BROKEN", "bold red"),
}


def verdict_text(verdict: Verdict) -> Text:
    """Returns a sign and a word."""
    return Text(*_VERDICTS.get(verdict.name, ("-", "")))


def finding_texts(status: RunStatus) -> Iterator[Text]:
    """Yields what is wrong with the run and what to do, the worst first; nothing if it is healthy."""
    for finding in status.findings:
        line = verdict_text(finding.verdict)
        line.append(f"  {finding.reason} ({finding.rule})\n    {finding.action}", style="none")
        yield line


def reason_text(reason: MissingReason) -> str:
    """Returns why positions are missing: "never arrived"."""
    return reason.name.lower().replace("_", " ")
