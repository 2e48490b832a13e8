"""TRL's trainer in two processes, which decide as one."""

import os
import pathlib
import socket
import unittest.mock

import torch
from trainer_case import DATASET, TrainerCase, Watched, reward, settings
from transformers import AutoModelForCausalLM, AutoTokenizer

import sis
from sis.integrations.trl import SisConfig


class TrlRankTest(TrainerCase):
    def test_two_ranks(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Where one fails, the other is ended.
        torch.multiprocessing.spawn(_rank, (port, self.path, self.server.address, str(self.folder)), nprocs=2)
        rows, run, parts = [torch.load(self.folder / name, weights_only=False) for name in ("rows", "run", "parts")]
        self.assertEqual(len(rows), 2)
        with sis.Client(self.server.address) as client:
            run = client.get_run(run).run
            for draw, row in enumerate(rows):
                totals = client.list_steps(run, draws=[draw])[draw].totals
                self.assertEqual((totals.missing, row["sis/incomplete"]), (0, 0))
                self.assertAlmostEqual(row["sis/accept_rate"], totals.accept_rate, places=9)
                self.assertAlmostEqual(row["sis/d"], totals.mean_d, places=9)
        # As one process sees them that evaluates both ranks' sequences in one call.
        apart, together = parts
        self.assertGreater(len(together), 50)
        self.assertEqual(apart, together)


def _rank(rank, port, path, address, folder):
    """One of two processes, as a launcher starts them."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)

    class Kept(Watched):
        """Keeps what it evaluated."""

        calls = []

        def _sis_acceptance(self, *args):
            evaluate = self._sis_service.evaluate

            def keep(records, gathered, draw, advantages, **options):
                evaluation = evaluate(records, gathered, draw, advantages, **options)
                kept = {name: values.detach() for name, values in gathered._asdict().items()}
                self.calls.append((draw, records.slices, kept, options["mask"], evaluation.accepted))
                return evaluation

            with unittest.mock.patch.object(self._sis_service, "evaluate", keep):
                return super()._sis_acceptance(*args)

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    trainer = Kept(
        model=model,
        reward_funcs=reward,
        args=settings(pathlib.Path(folder) / "ranks", max_steps=2, per_device_train_batch_size=4, top_k=20),
        train_dataset=DATASET,
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        sis_config=SisConfig(address, run="two-ranks"),
    )
    release = trainer._sis_rollouts.release

    def compare():
        # At the end, before the records go.
        if trainer.state.global_step == 2:
            gathered = [None, None]
            torch.distributed.all_gather_object(gathered, trainer.calls)
            if rank == 0:
                last = [call for calls in gathered for call in calls if call[0] == 1]
                slices = [part for call in last for part in call[1]]
                together = trainer.sis_client.evaluate(
                    trainer.sis_run,
                    slices,
                    draw=1,
                    log_probs=torch.cat([call[2]["log_probs"] for call in last]),
                    sampled_log_probs=torch.cat([call[2]["sampled_log_probs"] for call in last]),
                    options=sis.EvaluateOptions(mask=torch.cat([call[3] for call in last])),
                )
                apart = [bool(bit) for call in last for bit in call[4]]
                torch.save((apart, together.accepted.tolist()), f"{folder}/parts")
            torch.distributed.barrier()
        release()

    trainer._sis_rollouts.release = compare
    trainer.train()
    if rank == 0:
        torch.save([row for row in trainer.state.log_history if "sis/d" in row], f"{folder}/rows")
        torch.save(trainer.sis_run.id, f"{folder}/run")
    torch.distributed.destroy_process_group()
