"""sisctl sequence list, show; run inspect."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Iterator, List, Optional

import typer
from rich.console import RenderableType
from rich.text import Text

from sis.cli.connection import RUN, SERVER, connect, connected
from sis.cli.failure import fail
from sis.cli.output import OUTPUT, Output, Rows, console, number_text, print_json, share_text
from sis.cli.verdicts import reason_text

if TYPE_CHECKING:
    from sis import RunInspection, SequenceInspection, SequenceRef
    from sis._token_texts import TokenTexts

_STYLES = {"ACCEPTED": "green", "REJECTED": "red", "OUTSIDE_TOP_K": "magenta", "MISSING": "yellow", "MASKED": "dim"}
_NAMES = {"OUTSIDE_TOP_K": "outside top-K"}

TOKENIZER = typer.Option(
    None, "--tokenizer", metavar="FILE", show_default=False,
    help="Hugging Face tokenizer.json with the texts of the tokens; -: standard input.",
)  # fmt: skip


def list_sequences(run: str = RUN, output: Output = OUTPUT, server: str = SERVER) -> None:
    """Lists the sequences of a run that are in memory.

    \b
    LENGTH is the highest position plus one. POSITIONS is smaller if blocks
    have not come. READ says whether a trainer has fetched or evaluated the
    sequence. VERSION is the newest policy version of its positions. Sequences
    that only the store has are not listed. If there is a store, the last line
    says so (in JSON: store_keeps_evicted).

    \b
    Examples:
      sisctl sequence list math-7b
      sisctl sequence list math-7b -o json |
        jq '.sequences[] | select(.unread).sequence.id'
    """
    from sis import Sequences

    with connected(server) as client:
        found = client.get_run(run).run
        everything = Sequences()
        after: Optional[SequenceRef] = None
        rows = Rows(
            "SEQUENCE", "ATTEMPT", "LENGTH", "POSITIONS", "SEALED", "READ", "VERSION", "BYTES",
            left=["SEQUENCE"], first_to_go=["BYTES", "VERSION"],
        )  # fmt: skip
        while True:
            page = client.list_sequences(found, after=after)
            everything += page
            for listed in page:
                rows.add(
                    listed.sequence.id,
                    listed.sequence.attempt,
                    listed.committed_length,
                    listed.positions,
                    "yes" if listed.sealed else "no",
                    "no" if listed.unread else "yes",
                    listed.policy_version,
                    listed.bytes,
                )
            if not page.more:
                break
            after = page[-1].sequence
        if output is Output.json:
            print_json(
                {"sequences": list(everything), "store_keeps_evicted": page.store_keeps_evicted,
                 "unanswered": page.unanswered}
            )  # fmt: skip
            return
        console.print(rows)
        if page.store_keeps_evicted:
            console.print("These are in memory; others may have been evicted, and be in the store.")


def inspect_run(
    run: str = RUN, tokenizer: Optional[str] = TOKENIZER, output: Output = OUTPUT, server: str = SERVER
) -> None:
    """Shows what stands out in a run: sequences, rejected tokens, large ratios.

    \b
    The server keeps the last evaluated values of a sample of sequences, as
    far as --inspected_bytes has space. sisctl sequence show opens one of
    them. LOG W is log p - log q of the sampled token, in nats. NOT KEPT lists
    positions that were evaluated without space for their values.

    \b
    Examples:
      sisctl run inspect math-7b
      sisctl run inspect math-7b --tokenizer Qwen3-8B/tokenizer.json
    """
    tokens = _Tokens(tokenizer)
    with connected(server) as client:
        inspection = client.inspect_run(client.get_run(run).run)
        if output is Output.json:
            print_json(inspection)
            return
        if not inspection.sequences:
            console.print("nothing has been evaluated, or nothing is kept")
            return
        for part in _overview(inspection, tokens):
            console.print(part)


def show(
    run: str = RUN,
    sequence: str = typer.Argument(..., metavar="SEQUENCE", help="Id of the sequence."),
    attempt: int = typer.Option(0, min=0, help="Attempt of the sequence."),
    tokenizer: Optional[str] = TOKENIZER,
    output: Output = OUTPUT,
    server: str = SERVER,
) -> None:
    """Shows the tokens of a sequence, coloured by decision, as last evaluated.

    \b
    LOG W is log p - log q of the sampled token, in nats. A is the probability
    that the draw accepts. RESIDUAL is the current policy's mass outside the
    recorded tokens. BEHIND counts policy versions. The recorded tokens of a
    position are in the JSON, and on the page of sisctl web. The server keeps
    a sample of sequences: sisctl run inspect lists them.

    \b
    Examples:
      sisctl sequence show math-7b prompt-17 --tokenizer tokenizer.json
      sisctl sequence show math-7b prompt-17 --attempt 1 -o json
    """
    tokens = _Tokens(tokenizer)
    with connect(server) as client:
        inspection = client.inspect_sequence(client.get_run(run).run, (sequence, attempt))
    if output is Output.json:
        print_json(inspection)
        return
    for part in _sequence(inspection, tokens, with_texts=tokenizer is not None):
        console.print(part)


def read_tokenizer(name: str) -> TokenTexts:
    """Reads the texts of tokens from a file, or with - from standard input. Fails if it is no tokenizer.json."""
    from sis import _token_texts

    try:
        return _token_texts.parse(sys.stdin.buffer.read()) if name == "-" else _token_texts.read(name)
    except OSError as error:
        fail(f"--tokenizer: {name}: {error.strerror}")
    except ValueError as error:
        fail(f"--tokenizer: {error}")


class _Tokens:
    """The texts of tokens, as far as they are known."""

    def __init__(self, tokenizer: Optional[str]) -> None:
        """`tokenizer`: a file, or - for standard input; None: no text is known. Fails if it is no
        tokenizer.json."""
        self._texts = {} if tokenizer is None else read_tokenizer(tokenizer)

    def named(self, token: int) -> str:
        """Returns the text in quotes, and the id."""
        return f'"{_visible(self._texts[token])}" #{token}' if token in self._texts else f"#{token}"

    def running(self, token: int) -> str:
        """Returns the token as it stands in a text."""
        text = _visible(self._texts[token]) if token in self._texts else f"#{token} "
        return text.replace("\\n", "\\n\n")


def _visible(text: str) -> str:
    """Escapes characters that would move the cursor."""
    named = {"\n": "\\n", "\t": "\\t"}
    return "".join(
        character if character.isprintable() else named.get(character, f"\\x{ord(character):02X}") for character in text
    )


def _range(begin: int, end: int) -> str:
    return str(begin) if end - begin == 1 else f"{begin}-{end - 1}"


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.4f}"


def _name(sequence: SequenceRef) -> str:
    return sequence.id if sequence.attempt == 0 else f"{sequence.id} attempt {sequence.attempt}"


def _overview(inspection: RunInspection, tokens: _Tokens) -> Iterator[RenderableType]:
    rows = Rows(
        "SEQUENCE", "DRAW", "POSITIONS", "ACCEPTED", "D/TOKEN", "MISSING", "NOT KEPT",
        left=["SEQUENCE"], first_to_go=["NOT KEPT"],
    )  # fmt: skip
    for kept in inspection.sequences:
        rows.add(
            _name(kept.sequence),
            kept.draw,
            kept.positions,
            share_text(kept.totals.accept_rate),
            number_text(kept.totals.mean_d),
            kept.totals.missing,
            _range(kept.cut_begin, kept.cut_end) if kept.cut_end else "-",
        )
    yield rows
    yield ""
    rows = Rows("LARGEST |LOG W|", "DRAW", "POSITION", "LOG W", "TOKEN", left=["LARGEST |LOG W|", "TOKEN"])
    for found in inspection.deviations:
        rows.add(
            _name(found.sequence),
            found.draw,
            found.position,
            _signed(found.log_ratio),
            tokens.named(found.token_id),
        )
    yield rows
    yield ""
    name = "TOKEN, MOST REJECTED FIRST"
    rows = Rows(name, "ACCEPTED", "REJECTED", "TOO HIGH BY AT MOST", left=[name])
    for token in inspection.tokens:
        counts = (token.accepted, token.rejected, token.max_error)
        rows.add(tokens.named(token.token_id), *counts)
    yield rows


def _decisions(inspection: SequenceInspection) -> List[Text]:
    """Returns the decision about each position, in words and colour."""
    from sis import Decision, MissingReason

    def words(index: int) -> str:
        decision = inspection.decisions[index]
        if decision == Decision.MISSING:
            return f"missing: {reason_text(MissingReason(inspection.missing_reasons[index]))}"
        # The trainer's mask leaves out tokens that no policy generated, and tokens that are not in its
        # loss: these have a record.
        if decision == Decision.MASKED:
            return "not in the loss" if inspection.sampled_ids[index] >= 0 else "not generated by the policy"
        name = names.get(decision, "not evaluated")
        return _NAMES.get(name, name.lower())

    names = {decision.value: decision.name for decision in Decision}
    return [
        Text(words(index), _STYLES.get(names.get(decision, ""), "dim"))
        for index, decision in enumerate(inspection.decisions.tolist())
    ]


def _scored(inspection: SequenceInspection) -> List[bool]:
    from sis import Decision

    scored = (Decision.ACCEPTED, Decision.REJECTED, Decision.OUTSIDE_TOP_K)
    return [decision in scored for decision in inspection.decisions.tolist()]


def _sequence(inspection: SequenceInspection, tokens: _Tokens, with_texts: bool) -> Iterator[RenderableType]:
    decisions, scored = _decisions(inspection), _scored(inspection)
    ids = inspection.sampled_ids.tolist()
    legend = Text(f"draw {inspection.draw}: ")
    for name, style in _STYLES.items():
        legend.append(_NAMES.get(name, name.lower()), style).append("  ")
    yield legend
    if with_texts:
        whole = Text()
        for token, decision in zip(ids, decisions):
            whole.append(tokens.running(token) if token >= 0 else "…", decision.style)
        yield whole
        yield ""
    rows = Rows(
        "POSITION", "TOKEN", "DECISION", "LOG W", "A", "RESIDUAL", "BEHIND",
        left=["TOKEN", "DECISION"], first_to_go=["BEHIND"],
    )  # fmt: skip
    index = 0
    while index < len(ids):
        first = index
        position = inspection.first_position + first
        decision = decisions[first]
        index += 1
        if scored[first]:
            rows.add(
                position,
                Text(tokens.named(ids[first]), decision.style),
                decision,
                _signed(inspection.log_ratios[first]),
                number_text(inspection.acceptance_probabilities[first]),
                number_text(inspection.residual_masses[first]),
                inspection.staleness[first],
            )
        elif ids[first] >= 0:
            rows.add(position, Text(tokens.named(ids[first]), decision.style), decision)
        else:  # one row for positions without a token that have the same decision
            while index < len(ids) and ids[index] < 0 and decisions[index] == decision:
                index += 1
            rows.add(_range(position, inspection.first_position + index), "", decision)
    yield rows
    if inspection.cut_end:
        cut = _range(inspection.cut_begin, inspection.cut_end)
        yield f"{cut}: evaluated, but not kept: no space in --inspected_bytes"
