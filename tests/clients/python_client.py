"""Does with the client what lines say, in the words of tests/clients/behaviours.txt, and answers each
line with a line that says what came of it."""

import warnings

import numpy as np

import sis

TOP_K, VOCABULARY = 4, 64


def slice_of(text):
    """ "id", perhaps with ":first+length"."""
    sequence, _, span = text.partition(":")
    first, _, length = span.partition("+")
    return sis.Slice(sequence, int(first or 0), int(length or 0))


def rows_of(first_position, rows, seed):
    """Returns records. Among five consecutive tokens, four are in successive slots of their sets and one
    is outside. All values are exact in float32."""
    positions = np.arange(first_position, first_position + rows)
    n = 7 * positions + 13 * seed
    ids = (n[:, None] + 5 * np.arange(TOP_K)) % VOCABULARY
    log_probs = (np.array([-0.75, -1.5, -2.5, -3.25]) - (n % 5)[:, None] / 16).astype(np.float32)
    slot = positions % 5
    inside, at = slot < TOP_K, (np.arange(rows), np.minimum(slot, TOP_K - 1))
    return {
        "sampled_ids": np.where(inside, ids[at], (n + 45) % VOCABULARY),
        "sampled_log_probs": np.where(inside, log_probs[at], np.float32(-4)),
        "top_k_ids": ids,
        "top_k_log_probs": log_probs,
    }


def unanswered(merged):
    places = "".join(f" {place}" for place in merged.unanswered)
    return f" unanswered{places}" if places else ""


def told_missing(ranges):
    return "".join(
        f" missing {part.slice}:{part.first_position}+{part.length} {part.reason.name}" for part in ranges
    )


class PythonClient:
    def __init__(self):
        self._client = self._run = self._stream = self._records = None

    def close(self):
        if self._client is not None:
            with warnings.catch_warnings():
                # Warnings about streams that a scenario leaves open.
                warnings.simplefilter("ignore", RuntimeWarning)
                self._client.close()

    def do(self, line):
        verb, *words = line.split()
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            return getattr(self, verb)(*(word for word in words if "=" not in word), **settings) or "ok"
        except sis.AppendError as error:
            told = [f"refused {entry.sequence} {entry.code.name} {entry.message}" for entry in error.refused]
            return "; ".join(sorted(told))
        except sis.Error as error:
            return f"{error.code.name} {error.message}".replace("\n", " ")
        except ValueError as error:
            return f"INVALID_ARGUMENT {error}"

    def connect(self, addresses, timeout):
        self._client = sis.Client(addresses if len(addresses) > 1 else addresses[0], timeout=timeout)

    def create_run(self, name, **settings):
        given = {field: float(value) if field == "time_to_live" else int(value) for field, value in settings.items()}
        self._run = self._client.create_run(
            name, seed=3, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32", **given
        )
        return f"ok incarnation {self._run.incarnation}"

    def get_run(self, name):
        status = self._client.get_run(name)
        self._run = status.run
        return (
            f"ok incarnation {status.run.incarnation} version {status.policy_version} sequences {status.sequences} "
            f"sealed {status.sealed_sequences} positions {status.positions} kept {status.kept_sequences} "
            f"unread {status.unread_sequences}"
        )

    def list_runs(self):
        runs = self._client.list_runs()
        told = "".join(f" {run.run.id} {run.positions} {run.unread_sequences}" for run in runs)
        return f"ok{told}{unanswered(runs)}"

    def delete_run(self, name):
        return "ok deleted" if self._client.delete_run(name) else "ok was not there"

    def advance_version(self, version):
        return f"ok dropped {self._client.advance_version(self._run, int(version))}"

    def open(self, retry=60):
        sampling = sis.Sampling("raw")
        self._stream = self._client.append(self._run, sampling=sampling, worker="worker", retry_timeout=float(retry))

    def block(self, name, rows, first=0, version=0, seed=0):
        record = rows_of(int(first), int(rows), int(seed))
        self._stream.block(name, first_position=int(first), policy_version=int(version), **record)

    def append(self, name, **settings):
        """Appends a block on a stream of its own."""
        self.open()
        self.block(name, **settings)
        self.finish()

    def flush(self):
        self._stream.flush()

    def finish(self):
        self._stream.close()

    def fetch(self, *slices, keep=0):
        records = self._client.fetch_top_k(self._run, [slice_of(text) for text in slices], keep_seconds=float(keep))
        self._records = records
        return f"ok positions {len(records)}{told_missing(records.missing)}"

    def evaluate(self, draw, top_k=0, ratios=False, algorithm=None):
        records = self._records
        # Behaviour policy and current policy differ by these, slot by slot.
        shifts = np.array([0.125, -0.25, 0], np.float32)
        slots = np.arange(len(records))[:, None] + np.arange(TOP_K)
        log_probs = records.log_probs + shifts[slots % 3]
        is_sampled = (records.ids == records.sampled_ids[:, None]) & (records.ids >= 0)
        sampled = np.where(
            is_sampled.any(axis=1), log_probs[np.arange(len(records)), is_sampled.argmax(axis=1)],
            records.sampled_log_probs,
        )  # fmt: skip
        options = sis.EvaluateOptions()
        if algorithm is not None:
            options = sis.EvaluateOptions(
                algorithm={"clip_cov": sis.ClipCov, "gspo": sis.Gspo}[algorithm](),
                advantages=np.full(len(records), 0.5, np.float32),
            )
        outputs = ["decisions"] + ["ratios"] * bool(ratios) + ["coefficients"] * (algorithm is not None)
        evaluation = self._client.evaluate(
            self._run, records, draw=int(draw), top_k=int(top_k), log_probs=log_probs, sampled_log_probs=sampled,
            outputs=outputs, options=options,
        )  # fmt: skip
        totals = evaluation.totals
        return (
            f"ok scored {totals.scored} missing {totals.missing} new {evaluation.newly_counted}"
            f"{told_missing(evaluation.missing)}"
        )

    def get_step(self, draw):
        step = self._client.list_steps(self._run, draws=[int(draw)])[int(draw)]
        totals = step.totals
        told = f"ok sequences {step.sequences} scored {totals.scored} missing {totals.missing}"
        return f"{told}{unanswered(step)}"

    def list_steps(self):
        steps = self._client.list_steps(self._run)
        return " ".join(["ok", *map(str, steps)]) + unanswered(steps)
