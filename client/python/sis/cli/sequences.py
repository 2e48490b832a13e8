"""sisctl sequence list, show; run inspect."""

from __future__ import annotations

import itertools
import math
import pathlib
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional

import typer
from rich.console import RenderableType
from rich.text import Text

from sis.cli.connection import RUN, SERVER, connect, connected
from sis.cli.output import (
    OUTPUT, Cell, Output, Rows, fail, number_text, of, print_output, reason_text, share_text,
)  # fmt: skip

if TYPE_CHECKING:
    from sis import RunInspection, SequenceInspection
    from sis._token_texts import TokenTexts

_STYLES = {"ACCEPTED": "green", "REJECTED": "red", "OUTSIDE_TOP_K": "magenta", "MISSING": "yellow", "MASKED": "dim"}
_NAMES = {"OUTSIDE_TOP_K": "outside top-K"}
# Decisions with a ratio.
_SCORED = ("accepted", "rejected", "outside top-K")

# Columns of ListedSequence.
_LISTED = {
    "SEQUENCE": of("sequence.id"),
    "ATTEMPT": of("sequence.attempt"),
    "LENGTH": of("committed_length"),
    "POSITIONS": of("positions"),
    "SEALED": lambda listed: "yes" if listed.sealed else "no",
    "READ": lambda listed: "no" if listed.unread else "yes",
    "VERSION": of("policy_version"),
    "BYTES": of("bytes"),
}

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
    with connected(server) as client:
        found = client.get_run(run).run
        page = client.list_sequences(found)
        listed = list(page)
        while page.more:
            page = client.list_sequences(found, after=page[-1].sequence)
            listed += page
        kept, unanswered = page.store_keeps_evicted, page.unanswered
        report = {"sequences": listed, "store_keeps_evicted": kept, "unanswered": unanswered}
        parts: List[RenderableType] = [Rows(_LISTED, listed, left=["SEQUENCE"], first_to_go=["BYTES", "VERSION"])]
        if kept:
            parts.append(Text("These are in memory; others may have been evicted, and be in the store."))
        print_output(output, report, parts)


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
    texts = read_tokenizer(tokenizer)
    with connected(server) as client:
        inspection = client.inspect_run(client.get_run(run).run)
        nothing = [Text("nothing has been evaluated, or nothing is kept")]
        print_output(output, inspection, _overview(inspection, texts) if inspection.sequences else nothing)


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
    texts = read_tokenizer(tokenizer)
    with connect(server) as client:
        inspection = client.inspect_sequence(client.get_run(run).run, (sequence, attempt))
    print_output(output, inspection, _sequence(inspection, texts))


def read_tokenizer(name: Optional[str]) -> TokenTexts:
    """Reads the texts of tokens from a file, or with - from standard input; None: no texts. Fails if it is no
    tokenizer.json."""
    from sis import _token_texts

    if name is None:
        return {}
    try:
        return _token_texts.parse(sys.stdin.buffer.read() if name == "-" else pathlib.Path(name).read_bytes())
    except OSError as error:
        fail(f"--tokenizer: {name}: {error.strerror}")
    except ValueError as error:
        fail(f"--tokenizer: {name}: {error}")


def _named(texts: TokenTexts, token: int) -> str:
    """Returns the text in quotes, and the id."""
    return f'"{_visible(texts[token])}" #{token}' if token in texts else f"#{token}"


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


def _overview(inspection: RunInspection, texts: TokenTexts) -> Iterator[RenderableType]:
    name = of("sequence.name")
    sequences = {
        "SEQUENCE": name,
        "DRAW": of("draw"),
        "POSITIONS": of("positions"),
        "ACCEPTED": of("totals.accept_rate", share_text),
        "D/TOKEN": of("totals.mean_d", number_text),
        "MISSING": of("totals.missing"),
        "NOT KEPT": lambda kept: _range(kept.cut_begin, kept.cut_end) if kept.cut_end else "-",
    }
    yield Rows(sequences, inspection.sequences, left=["SEQUENCE"], first_to_go=["NOT KEPT"])
    yield ""
    token = of("token_id", lambda token: _named(texts, token))
    largest = "LARGEST |LOG W|"
    deviations = {
        largest: name, "DRAW": of("draw"), "POSITION": of("position"), "LOG W": of("log_ratio", _signed), "TOKEN":
        token,
    }  # fmt: skip
    yield Rows(deviations, inspection.deviations, left=[largest, "TOKEN"])
    yield ""
    first = "TOKEN, MOST REJECTED FIRST"
    counts = {
        first: token, "ACCEPTED": of("accepted"), "REJECTED": of("rejected"), "TOO HIGH BY AT MOST": of("max_error"),
    }  # fmt: skip
    yield Rows(counts, inspection.tokens, left=[first])


def _decisions(inspection: SequenceInspection) -> List[Text]:
    """Returns the decision about each position, in words and colour."""
    from sis import Decision, MissingReason

    names = {decision.value: decision.name for decision in Decision}

    def shown(decision: int, reason: int, token: int) -> Text:
        name = names.get(decision, "not evaluated")
        words = _NAMES.get(name, name.lower())
        if decision == Decision.MISSING:
            words += f": {reason_text(MissingReason(reason))}"
        # The trainer's mask leaves out tokens that no policy generated, and tokens that are not in its
        # loss: these have a record.
        if decision == Decision.MASKED:
            words = "not in the loss" if token >= 0 else "not generated by the policy"
        return Text(words, _STYLES.get(name, "dim"))

    return list(map(shown, inspection.decisions, inspection.missing_reasons, inspection.sampled_ids))


def _sequence(inspection: SequenceInspection, texts: TokenTexts) -> Iterator[RenderableType]:
    decisions = _decisions(inspection)
    ids = inspection.sampled_ids.tolist()
    legend = Text(f"draw {inspection.draw}: ")
    for name, style in _STYLES.items():
        legend.append(_NAMES.get(name, name.lower()), style).append("  ")
    yield legend
    if texts:
        whole = Text()
        for token, decision in zip(ids, decisions):
            text = _visible(texts[token]).replace("\\n", "\\n\n") if token in texts else f"#{token} "
            whole.append(text if token >= 0 else "…", decision.style)
        yield whole
        yield ""
    # Positions without a token that have the same decision share a row.
    groups = itertools.groupby(range(len(ids)), lambda index: index if ids[index] >= 0 else decisions[index].plain)
    first = inspection.first_position

    def of_scored(values: Any, text: Callable[[Any], str]) -> Callable[[List[int]], str]:
        return lambda row: text(values[row[0]]) if decisions[row[0]].plain in _SCORED else ""

    columns: Dict[str, Callable[[List[int]], Cell]] = {
        "POSITION": lambda row: _range(first + row[0], first + row[-1] + 1),
        "TOKEN": lambda row: Text(_named(texts, ids[row[0]]) if ids[row[0]] >= 0 else "", decisions[row[0]].style),
        "DECISION": lambda row: decisions[row[0]],
        "LOG W": of_scored(inspection.log_ratios, _signed),
        "A": of_scored(inspection.acceptance_probabilities, number_text),
        "RESIDUAL": of_scored(inspection.residual_masses, number_text),
        "BEHIND": of_scored(inspection.staleness, str),
    }
    rows = [list(group) for _, group in groups]
    yield Rows(columns, rows, left=["TOKEN", "DECISION"], first_to_go=["BEHIND"])
    if inspection.cut_end:
        cut = _range(inspection.cut_begin, inspection.cut_end)
        yield f"{cut}: evaluated, but not kept: no space in --inspected_bytes"
