"""sis.tracking: the trackers read back, offline, the values of the server."""

import json
import math
import os
import pathlib
import re
import struct
import tempfile
import unittest

FOLDER = tempfile.TemporaryDirectory()
# Read when they are imported.
os.environ.update(
    WANDB_MODE="offline", WANDB_DIR=FOLDER.name, TRACKIO_DIR=FOLDER.name + "/trackio", HF_HUB_OFFLINE="1",
    WANDB_SILENT="true", MLFLOW_ALLOW_FILE_STORE="true",
)  # fmt: skip

import numpy as np  # noqa: E402
from server.testing.live_server import LiveServer  # noqa: E402
from server.testing.random_records import drawn, log_softmax  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

import sis  # noqa: E402
import sis.tracking  # noqa: E402

VOCABULARY, K, LENGTH, GAP = 16, 4, 200, 40
STEP = 7


def text(token_id):
    """One that breaks a table in Markdown unless it is escaped."""
    return f"|\n<{token_id}>"


def records_of(data):
    """Returns the records of a W&B file: a header of 7 bytes, then LevelDB's log format."""
    at, parts = 7, []
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # all of a record, or its end
            yield b"".join(parts)
            parts = []


def trackio_table(row):
    import trackio

    shown = trackio.Table.to_display_format(row["sis/tokens"]["_value"])
    return [list(entry.values()) for entry in shown]


class TrackingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(FOLDER.cleanup)
        cls.server = server = LiveServer()
        cls.addClassCleanup(server.close)
        client = sis.Client(server.address, timeout=60)
        cls.addClassCleanup(client.close)
        run = client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=K)
        generator = np.random.default_rng(1)
        record = drawn(log_softmax(2 * generator.normal(size=(LENGTH, VOCABULARY))), generator, K)._asdict()
        with client.append(run, sampling=sis.Sampling("raw")) as stream:
            stream.block("s", first_position=0, policy_version=0, **record)
            one = {name: array[-1:] for name, array in record.items()}
            stream.block("s", first_position=LENGTH + GAP, policy_version=0, **one)
        client.advance_version(run, 1)
        records = client.fetch_top_k(run, ["s"])
        current = log_softmax(0.5 * generator.normal(size=(len(records), VOCABULARY)) + 0.0)
        log_probs, own = sis.gather(records, current)
        cls.evaluation = client.evaluate(run, records, draw=STEP, log_probs=log_probs, sampled_log_probs=own)
        cls.step = client.list_steps(run, draws=[STEP])[STEP]
        cls.tokens = client.inspect_run(run).tokens
        cls.metrics = sis.tracking.metrics(cls.step)
        cls.rows = [
            [token.token_id, text(token.token_id), token.accepted, token.rejected, token.max_error]
            for token in cls.tokens
        ]

    def check(self, read, places=12):
        """`read`: by name, without NaN."""
        wanted = {f"sis/{name}": value for name, value in self.metrics.items() if not math.isnan(value)}
        self.assertGreater(len(wanted), 15)
        self.assertEqual(set(read), set(wanted))
        for name, value in wanted.items():
            self.assertAlmostEqual(read[name] / (value or 1), value / (value or 1), places, name)

    def test_metrics(self):
        totals = self.evaluation.totals
        self.assertEqual((totals.scored, totals.missing), (LENGTH + 1, GAP))
        (age,) = self.step.ages
        of_age = {"age_1/accept_rate": age.accept_rate, "age_1/d": age.mean_d, "age_1/tokens": LENGTH + 1}
        self.assertEqual(self.metrics, {**sis.tracking.metrics(self.evaluation), **of_age})
        shares = {name: value for name, value in self.metrics.items() if name.startswith("missing_")}
        self.assertEqual(shares.pop("missing_never_arrived"), GAP / (LENGTH + 1 + GAP))
        self.assertEqual(self.metrics["missing"], GAP / (LENGTH + 1 + GAP))
        self.assertEqual(len(shares), len(sis.MissingReason) - 2)
        self.assertEqual(set(shares.values()), {0})
        self.assertEqual(self.metrics["accept_rate"], self.evaluation.accepted.sum() / (LENGTH + 1))
        self.assertTrue(self.rows)
        # Nothing evaluated: no share, and nothing that a tracker would draw.
        nothing = sis.tracking.metrics(sis.Step(sis.Totals(), 0))
        self.assertEqual({name for name, value in nothing.items() if value == value}, {"envelope_violations"})

    def test_wandb(self):
        import wandb
        from wandb.proto import wandb_internal_pb2

        run = wandb.init(project="sis", dir=FOLDER.name)
        sis.tracking.to_wandb(run, text)(STEP, self.metrics, self.tokens)
        folder = pathlib.Path(run.dir)
        run.finish()
        wandb.teardown()
        (file,) = folder.parent.glob("*.wandb")
        found, steps = {}, set()
        for data in records_of(file.read_bytes()):
            history = wandb_internal_pb2.Record.FromString(data).history
            for item in history.item:
                steps.add(history.step.num)
                found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        self.assertEqual(steps, {STEP}, found)
        table = json.loads((folder / found["sis/tokens/path"]).read_text())
        self.assertEqual((table["columns"], table["data"]), (list(sis.tracking.COLUMNS), self.rows))
        self.check({name: found[name] for name in found if re.match("sis/(?!tokens)", name)})

    def test_mlflow(self):
        import mlflow

        mlflow.set_tracking_uri(f"file://{FOLDER.name}/mlruns")
        with mlflow.start_run() as run:
            sis.tracking.to_mlflow(run.info.run_id, text)(STEP, self.metrics, self.tokens)
        client = mlflow.MlflowClient()
        self.check(client.get_run(run.info.run_id).data.metrics)
        (point,) = client.get_metric_history(run.info.run_id, "sis/accept_rate")
        self.assertEqual(point.step, STEP)
        table = mlflow.load_table(f"sis/tokens-{STEP}.json", run_ids=[run.info.run_id])
        self.assertEqual(table[list(sis.tracking.COLUMNS)].values.tolist(), self.rows)

    def test_trackio(self):
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        run = trackio.init(project="sis", name="r", embed=False)
        sis.tracking.to_trackio(run, text)(STEP, self.metrics, self.tokens)
        trackio.finish()
        (row,) = SQLiteStorage.get_logs("sis", "r")
        self.assertEqual(row["step"], STEP)
        self.assertEqual(trackio_table(row), self.rows)
        self.check({name: row[name] for name in row if name.startswith("sis/") and name != "sis/tokens"})

    def test_tensorboard(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        folder = FOLDER.name + "/tensorboard"
        with SummaryWriter(folder) as writer:
            sis.tracking.to_tensorboard(writer, text)(STEP, self.metrics, self.tokens)
        events = EventAccumulator(folder).Reload()
        read = {}
        for name in events.Tags()["scalars"]:
            (event,) = events.Scalars(name)
            self.assertEqual(event.step, STEP)
            read[name] = event.value
        self.check(read, places=6)  # float32
        (event,) = events.Tensors("sis/tokens/text_summary")
        self.check_text(event)

    def check_text(self, event):
        lines = event.tensor_proto.string_val[0].decode().split("\n")
        self.assertEqual(len(lines), len(self.rows) + 2)
        for line, row in zip(lines[2:], self.rows):
            self.assertTrue(line.startswith(f"| {row[0]} | \\|\\n&lt;{row[0]}> | {row[2]} |"), line)

    def test_verl(self):
        """Its own Tracking, told of a training as its trainers tell it; logs beside it what it logged before."""
        import mlflow
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from trackio.sqlite_storage import SQLiteStorage
        from verl.utils.tracking import Tracking

        from sis.integrations.verl import _token_tables
        from sis.integrations.verl._settings import check_training

        folder = pathlib.Path(FOLDER.name)
        os.environ.update(TENSORBOARD_DIR=f"{folder}/of-verl", MLFLOW_TRACKING_URI=f"file://{folder}/mlruns")
        words = {text(number): number for number in range(VOCABULARY)}
        tokenizer = Tokenizer(WordLevel(words, unk_token=text(0)))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=text(0)).save_pretrained(folder / "model")
        of_sis = {"address": self.server.address, "run": "r", "token_table_steps": 2}
        config = {
            "trainer": {"logger": ["tensorboard", "mlflow", "trackio"]},
            "actor_rollout_ref": {"model": {"path": f"{folder}/model"}, "rollout": {"custom": {"sis": of_sis}}},
        }
        _token_tables.install()
        log = Tracking("sis", "of-verl", config["trainer"]["logger"], config=config)
        run = mlflow.active_run().info.run_id
        for step in range(5):
            log.log(data={"score": step}, step=step)
        log.log(data={"validation": 1.0}, step=4)
        log.finish()

        events = EventAccumulator(f"{folder}/of-verl").Reload()
        self.assertEqual([event.step for event in events.Scalars("score")], [0, 1, 2, 3, 4])
        tables = events.Tensors("sis/tokens/text_summary")
        self.assertEqual([event.step for event in tables], [2, 4])
        for event in tables:
            self.check_text(event)
        self.assertEqual([event.step for event in events.Scalars("sis/age_1/accept_rate")], [2, 4])
        for step in (2, 4):
            table = mlflow.load_table(f"sis/tokens-{step}.json", run_ids=[run])
            self.assertEqual(table[list(sis.tracking.COLUMNS)].values.tolist(), self.rows)
        shown = [row for row in SQLiteStorage.get_logs("sis", "of-verl") if "sis/tokens" in row]
        self.assertEqual([row["step"] for row in shown], [2, 4])
        table = trackio_table(shown[0])
        self.assertEqual(table, self.rows)

        # Others are as they were.
        other = Tracking("sis", "other", ["console"], config={"trainer": {}})
        other.log(data={"score": 1.0}, step=2)
        self.assertFalse(hasattr(other, "sis_token_tables"))
        rollout = {"name": "vllm", "calculate_log_probs": True, "custom": {"sis": of_sis}}
        parts = {"actor": {"strategy": "fsdp2"}, "rollout": rollout, "model": {}}
        told = {"actor_rollout_ref": parts, "algorithm": {}, "trainer": {"logger": ["console", "wandb"]}}
        check_training(told)
        told["trainer"]["logger"] = ["console"]
        with self.assertRaisesRegex(ValueError, "token_table_steps is 2, but trainer.logger is .'console'.: add wandb"):
            check_training(told)


if __name__ == "__main__":
    unittest.main()
