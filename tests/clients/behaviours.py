"""The client's behaviour when something is lost, late or wrong: the table that behaviours_test.py plays.

`python3 -m tests.clients.behaviours` writes the rows that have an outcome in words into docs/faults.md.
"""

import pathlib
import re
from typing import NamedTuple, Sequence, Tuple

PAGE = pathlib.Path("docs/faults.md")
BEGIN = "<!-- behaviours: written by python3 -m tests.clients.behaviours -->\n"
END = "<!-- end of behaviours -->\n"


class Behaviour(NamedTuple):
    """Lines to run in order, each with its outcome.

    Client `a` runs a line, or the client whose name it begins with ("b: get_run run"); each client connects
    before its first line. In outcomes "…" matches anything. The test runs lines in {}: {kill 0} ends server 0
    as kill -9 does, {restart 0} starts it at the same address with nothing in memory, {stop 0} and {continue 0}
    are signals, {wait 0.3} waits in seconds. A line that begins with "until" is repeated until the outcome matches.
    With several servers, server 0 has the sequence "x0", server 1 has "x1".
    """

    situation: str
    # The outcome in words, for the page. Empty if the error itself, or another page, says enough: the page then omits
    # the row.
    says: str
    lines: Sequence[Tuple[str, str]]
    servers: int = 1
    flags: Sequence[str] = ()
    # Timeout of each call, in seconds.
    timeout: float = 20


CREATE = ("create_run run", "ok incarnation 1")
DONE = "ok"


def appended(*blocks):
    """Returns the lines that append blocks on a stream of their own."""
    return [("open", DONE), *((f"block {block}", DONE) for block in blocks), ("finish", DONE)]


BEHAVIOURS = [
    # Lost sequences.
    Behaviour(
        "a lost sequence is fetched by name",
        "its slice has length 0 (NEVER_ARRIVED); the others are decided",
        [
            CREATE,
            *appended("x rows=20"),
            ("fetch lost x", "ok positions 20 missing 0:0+0 NEVER_ARRIVED"),
            ("evaluate draw=1", "ok scored 20 missing 0 new 20"),
        ],
    ),
    Behaviour(
        "a lost sequence is fetched with its length",
        "it keeps its rows, all MISSING; asking for their ratios is FAILED_PRECONDITION",
        [
            CREATE,
            *appended("x rows=20"),
            ("fetch x lost:0+10", "ok positions 30 missing 1:0+10 NEVER_ARRIVED"),
            ("evaluate draw=1", "ok scored 20 missing 10 new 30 missing 1:0+10 NEVER_ARRIVED"),
            ("evaluate draw=1 ratios=1", "FAILED_PRECONDITION …'lost' attempt 0 position 0 is missing (never_arrived)…"),
        ],
    ),
    Behaviour(
        "all sequences of a batch are lost",
        "Evaluate sends nothing and returns no error",
        [
            CREATE,
            ("fetch lost gone", "ok positions 0 missing 0:0+0 NEVER_ARRIVED missing 1:0+0 NEVER_ARRIVED"),
            ("evaluate draw=1 ratios=1", "ok scored 0 missing 0 new 0"),
            ("get_step 1", "NOT_FOUND …"),
            ("fetch", "INVALID_ARGUMENT …slices…"),
        ],
    ),
    Behaviour(
        "the end of a sequence has not arrived",
        "the positions that arrived are decided; the rest is MISSING (NEVER_ARRIVED)",
        [
            CREATE,
            *appended("x rows=20"),
            ("fetch x:15+10", "ok positions 10 missing 0:20+5 NEVER_ARRIVED"),
            ("evaluate draw=1", "ok scored 5 missing 5 new 10 missing 0:20+5 NEVER_ARRIVED"),
        ],
    ),
    Behaviour(
        "a sequence is older than `max_staleness` allows",
        "",
        [
            ("create_run run max_staleness=1", "ok incarnation 1"),
            *appended("x rows=20", "y rows=5 version=1"),
            ("advance_version 2", "ok dropped 1"),
            ("fetch x:0+20 y", "ok positions 25 missing 0:0+20 STALE"),
            ("evaluate draw=1", "ok scored 5 missing 20 new 25 missing 0:0+20 STALE"),
            ("advance_version 1", "FAILED_PRECONDITION …"),
        ],
    ),
    Behaviour(
        "kept records become stale between updates",
        "MISSING (STALE); deleted when `keep_seconds` have passed",
        [
            ("create_run run max_staleness=1", "ok incarnation 1"),
            *appended("x rows=20", "x first=20 rows=10 version=1", "y rows=5 version=2"),
            ("fetch x y keep=30", "ok positions 35"),
            ("evaluate draw=1", "ok scored 35 missing 0 new 35"),
            ("advance_version 2", "ok dropped 0"),
            ("evaluate draw=2", "ok scored 15 missing 20 new 35 missing 0:0+20 STALE"),
            ("advance_version 3", "ok dropped 0"),
            ("evaluate draw=3", "ok scored 5 missing 30 new 35 missing 0:0+30 STALE"),
        ],
    ),
    Behaviour(
        "no call names a run for `--run_idle_expiry`",
        "",
        [
            CREATE,
            *appended("x rows=20"),
            ("{wait 5}", ""),
            ("b: get_run run", "NOT_FOUND …"),
            ("fetch x:0+20", "FAILED_PRECONDITION …deleted at incarnation 1…"),
            ("create_run run", "ok incarnation 2"),
            ("fetch x:0+20", "ok positions 20 missing 0:0+20 NEVER_ARRIVED"),
        ],
        flags=["--run_idle_expiry=2s"],
    ),
    # Appends.
    Behaviour(
        "a worker sends the same records again",
        "nothing changes; other values at these positions are ALREADY_EXISTS in the flush",
        [
            CREATE,
            *appended("x rows=20"),
            *appended("x rows=20"),
            *appended("x first=10 rows=20"),
            ("get_run run", "ok incarnation 1 version 0 sequences 1 sealed 0 positions 30 kept 0 unread 1"),
            ("open", DONE),
            ("block x rows=20 seed=7", DONE),
            ("block y rows=20", DONE),
            ("flush", "refused x ALREADY_EXISTS …position 0…"),
            ("get_run run", "ok incarnation 1 version 0 sequences 2 sealed 0 positions 50 kept 0 unread 2"),
            ("finish", DONE),
        ],
    ),
    Behaviour(
        "a sequence is generated again by newer weights",
        "",
        [
            CREATE,
            *appended("x rows=20"),
            ("open", DONE),
            ("block x#1 rows=25 version=1 seed=5", DONE),
            ("seal x#1 25", DONE),
            ("flush", DONE),
            ("fetch x x#1", "ok positions 45"),
            ("evaluate draw=1", "ok scored 45 missing 0 new 45"),
            ("block x#1 first=25 rows=1", DONE),
            ("flush", "refused x FAILED_PRECONDITION …"),
            ("finish", DONE),
        ],
    ),
    Behaviour(
        "a block is larger than the run's quota",
        "the client retries for `retry_timeout`, then reports RESOURCE_EXHAUSTED; the rest is stored",
        [
            ("create_run run byte_quota=20000", "ok incarnation 1"),
            ("open retry=0.2", DONE),
            ("block x rows=4000", DONE),
            ("block y rows=20", DONE),
            ("flush", "refused x RESOURCE_EXHAUSTED …"),
            ("fetch x:0+20 y", "ok positions 40 missing 0:0+20 NEVER_ARRIVED"),
            ("finish", DONE),
        ],
    ),
    Behaviour(
        "a run that may evict exceeds its quota",
        "",
        [
            ("create_run run byte_quota=14000 evict_unread=1", "ok incarnation 1"),
            *appended("x rows=64", *(f"y{i} rows=64" for i in range(9))),
            ("fetch x:0+64 y8", "ok positions 128 missing 0:0+64 EVICTED"),
            ("evaluate draw=1", "ok scored 64 missing 64 new 128 missing 0:0+64 EVICTED"),
        ],
    ),
    Behaviour(
        "a stream has ended",
        "",
        [
            CREATE,
            *appended("x rows=20"),
            ("block x first=20 rows=5", "INVALID_ARGUMENT …closed…"),
            ("get_run run", "ok …positions 20 …"),
        ],
    ),
    # Evaluate.
    Behaviour(
        "an Evaluate is repeated",
        "the same draw gives the same bits and counts once; another draw decides independently",
        [
            CREATE,
            *appended("x rows=200"),
            ("fetch x", "ok positions 200"),
            ("evaluate draw=1", "ok scored 200 missing 0 new 200"),
            ("evaluate draw=1", "ok scored 200 missing 0 new 0"),
            ("evaluate draw=2", "ok scored 200 missing 0 new 200"),
            ("evaluate draw=2 top_k=2 ratios=1", "ok scored 200 missing 0 new 0"),
            ("get_step 1", "ok sequences 1 scored 200 missing 0"),
            ("evaluate draw=1", "ok scored 200 missing 0 new 0"),
            ("list_steps", "ok 1 2"),
        ],
    ),
    Behaviour(
        "an algorithm needs ratios, and records are missing",
        "FAILED_PRECONDITION, unless the trainer sends `own_log_probs`",
        [
            CREATE,
            *appended("x rows=20"),
            ("fetch x lost:0+5", "ok positions 25 missing 1:0+5 NEVER_ARRIVED"),
            ("evaluate draw=1 algorithm=gspo", "FAILED_PRECONDITION …'lost' attempt 0 position 0…"),
        ],
    ),
    # Keeping and releasing.
    Behaviour(
        "`keep_seconds` pass before the trainer evaluates",
        "the records that are left are decided; evicted ones are MISSING",
        [
            ("create_run run time_to_live=1", "ok incarnation 1"),
            *appended("x rows=20"),
            ("fetch x keep=4", "ok positions 20"),
            ("{wait 2}", ""),
            ("evaluate draw=1", "ok scored 20 missing 0 new 20"),
            ("until get_run run", "ok …sequences 0 …"),
            ("evaluate draw=2", "ok scored 0 missing 20 new 20 missing 0:0+20 EXPIRED"),
        ],
    ),
    Behaviour(
        "another client releases a kept sequence",
        "",
        [
            CREATE,
            *appended("x rows=20"),
            ("fetch x keep=60", "ok positions 20"),
            ("evaluate draw=1", "ok scored 20 missing 0 new 20"),
            ("b: get_run run", "ok …kept 1 …"),
            ("b: release x", "ok sequences 1 unknown 0"),
            ("release x lost", "ok sequences 0 unknown 2"),
            ("evaluate draw=2", "ok scored 0 missing 20 new 20 missing 0:0+20 RELEASED"),
        ],
    ),
    # Runs.
    Behaviour(
        "a run is resumed as a new incarnation",
        "calls with the old incarnation are FAILED_PRECONDITION",
        [
            CREATE,
            *appended("x rows=20"),
            ("open", DONE),
            ("flush", DONE),
            ("fetch x", "ok positions 20"),
            ("b: create_run run incarnation=2", "ok incarnation 2"),
            ("block y rows=5", DONE),
            ("flush", "FAILED_PRECONDITION …incarnation…"),
            ("evaluate draw=1", "FAILED_PRECONDITION …incarnation…"),
            ("fetch x", "FAILED_PRECONDITION …incarnation…"),
            ("advance_version 3", "FAILED_PRECONDITION …incarnation…"),
            ("create_run run", "ok incarnation 2"),
            ("fetch x", "ok positions 0 missing 0:0+0 NEVER_ARRIVED"),
        ],
    ),
    Behaviour(
        "a run is unknown or deleted",
        "NOT_FOUND; DeleteRun succeeds; opening it again starts the next incarnation",
        [
            ("get_run run", "NOT_FOUND …"),
            ("delete_run run", "ok was not there"),
            CREATE,
            ("open", DONE),
            ("block x rows=20", DONE),
            ("flush", DONE),
            ("delete_run run", "ok deleted"),
            ("get_run run", "NOT_FOUND …"),
            ("fetch x", "NOT_FOUND …"),
            ("block x first=20 rows=5", DONE),
            ("flush", "NOT_FOUND …"),
            ("open", DONE),
            ("flush", "NOT_FOUND …"),
            ("create_run run", "ok incarnation 2"),
        ],
    ),
    # One server.
    Behaviour(
        "the server is killed and comes back empty",
        "",
        [
            ("create_run run incarnation=3", "ok incarnation 3"),
            *appended("x rows=20"),
            ("advance_version 2", "ok dropped 0"),
            ("b: get_run run", "ok incarnation 3 version 2 …"),
            ("fetch x keep=60", "ok positions 20"),
            ("evaluate draw=1", "ok scored 20 missing 0 new 20"),
            ("open", DONE),
            ("flush", DONE),
            ("{kill 0}", ""),
            ("evaluate draw=2", "UNAVAILABLE …"),
            ("until block y rows=5", "UNAVAILABLE …"),
            ("flush", "UNAVAILABLE …"),
            ("{restart 0}", ""),
            ("until b: fetch x:0+20", "ok positions 20 missing 0:0+20 NEVER_ARRIVED"),
            ("until evaluate draw=2", "ok scored 0 missing 20 new 20 missing 0:0+20 NEVER_ARRIVED"),
            ("b: get_run run", "ok incarnation 3 version 2 …"),
            ("flush", "UNAVAILABLE …"),
            *appended("x rows=20"),
            ("evaluate draw=1", "ok scored 20 missing 0 new 20"),
        ],
    ),
    Behaviour(
        "the server does not answer",
        "",
        [
            CREATE,
            *appended("x rows=20"),
            ("fetch x", "ok positions 20"),
            ("{stop 0}", ""),
            ("evaluate draw=1", "DEADLINE_EXCEEDED …"),
            ("{continue 0}", ""),
            # Whether the first evaluate is still counted depends on when its caller left.
            ("until get_run run", "ok …"),
            ("evaluate draw=2", "ok scored 20 missing 0 new 20"),
        ],
        timeout=3,
    ),
    # Several servers.
    Behaviour(
        "all of several servers are up",
        "",
        [
            CREATE,
            *appended("x0 rows=20", "x1 rows=30", "y0 rows=5 version=1", "y1 rows=7"),
            ("get_run run", "ok incarnation 1 version 0 sequences 4 sealed 0 positions 62 kept 0 unread 4"),
            ("list_runs", "ok run 62 4"),
            ("fetch x1 y0 x0 y1 lost0 keep=60", "ok positions 62 missing 4:0+0 NEVER_ARRIVED"),
            ("evaluate draw=2 ratios=1", "ok scored 62 missing 0 new 62"),
            ("evaluate draw=1", "ok scored 62 missing 0 new 62"),
            ("evaluate draw=1 algorithm=gspo", "ok scored 62 missing 0 new 0"),
            ("get_step 1", "ok sequences 4 scored 62 missing 0"),
            ("list_steps", "ok 2 1"),
            ("release x0 y1 none1", "ok sequences 2 unknown 1"),
            ("evaluate draw=3", "ok scored 35 missing 27 new 62 missing 2:0+20 RELEASED missing 3:0+7 RELEASED"),
        ],
        servers=2,
    ),
    Behaviour(
        "one of several servers without a shared store is killed",
        "its share is MISSING (STORE_DOWN), its entries UNAVAILABLE at the flush; the rest continues; merged answers name it in `unanswered`; DeleteRun fails",
        [
            CREATE,
            *appended("x0 rows=20", "x1 rows=30"),
            ("fetch x0 x1", "ok positions 50"),
            ("evaluate draw=1", "ok scored 50 missing 0 new 50"),
            ("open", DONE),
            ("flush", DONE),
            ("{kill 1}", ""),
            ("evaluate draw=2", "ok scored 20 missing 30 new 20 missing 1:0+30 STORE_DOWN"),
            ("evaluate draw=2 ratios=1", "FAILED_PRECONDITION …'x1' attempt 0 position 0 is missing (store_down)…"),
            ("block y0 rows=5", DONE),
            ("block y1 rows=5", DONE),
            ("flush", "refused y1 UNAVAILABLE …"),
            ("fetch x0 y0 y1:0+5", "ok positions 30 missing 2:0+5 STORE_DOWN"),
            ("get_run run", "ok incarnation 1 version 0 sequences 2 …"),
            ("advance_version 1", "ok dropped 0"),
            ("get_step 2", "ok sequences 1 scored 20 missing 0 unanswered 1"),
            ("list_steps", "ok 1 2 unanswered 1"),
            ("list_runs", "ok run 25 0 unanswered 1"),
            ("delete_run run", "UNAVAILABLE …deleted, but perhaps not on 1 of 2 replicas…"),
            ("finish", DONE),
        ],
        servers=2,
    ),
    Behaviour(
        "one of several servers comes back empty",
        "",
        [
            CREATE,
            *appended("x0 rows=20", "x1 rows=30"),
            ("advance_version 2", "ok dropped 0"),
            ("{kill 1}", ""),
            ("fetch x0 x1:0+30", "ok positions 50 missing 1:0+30 STORE_DOWN"),
            ("{restart 1}", ""),
            ("until b: get_run run", "ok incarnation 1 version 2 sequences 1 …"),
            ("until b: fetch x1", "ok positions 0 missing 0:0+0 NEVER_ARRIVED"),
            ("b: open", DONE),
            ("b: block x1 rows=30 version=2", DONE),
            ("b: flush", DONE),
            ("evaluate draw=1", "ok scored 20 missing 30 new 20 missing 1:0+30 STORE_DOWN"),
            ("until fetch x0 x1", "ok positions 50"),
            ("evaluate draw=1", "ok scored 50 missing 0 new 30"),
        ],
        servers=2,
    ),
    Behaviour(
        "all of several servers are killed",
        "",
        [
            CREATE,
            *appended("x0 rows=20", "x1 rows=30"),
            ("fetch x0 x1", "ok positions 50"),
            ("{kill 0}", ""),
            ("{kill 1}", ""),
            ("evaluate draw=1", "UNAVAILABLE …"),
            ("get_run run", "UNAVAILABLE …"),
            ("fetch x0 x1", "UNAVAILABLE …"),
        ],
        servers=2,
    ),
    Behaviour(
        "Clip-Cov over several servers",
        "",
        [
            CREATE,
            *appended("x0 rows=20", "x1 rows=30"),
            ("fetch x0 x1", "ok positions 50"),
            ("evaluate draw=1 algorithm=clip_cov", "INVALID_ARGUMENT …clip_cov…there are 2, must be one"),
            ("get_step 1", "NOT_FOUND …"),
        ],
        servers=2,
    ),
]


def listing() -> str:
    """Returns the part of the page that is generated, with its markers."""
    rows = "".join(f"- {behaviour.situation}: {behaviour.says}\n" for behaviour in BEHAVIOURS if behaviour.says)
    return f"{BEGIN}{rows}{END}"


if __name__ == "__main__":
    PAGE.write_text(re.sub(f"(?s){BEGIN}.*{END}", lambda _: listing(), PAGE.read_text()))
