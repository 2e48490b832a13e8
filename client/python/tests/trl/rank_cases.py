"""TRL's trainer in two processes: each loss is that of float64, and what both log are the server's counts of both."""

import types

from two_processes import TwoProcessCase

import sis


class TrlRankTest(TwoProcessCase):
    def test_two_ranks(self):
        ranks = self.ranks(ddp={})["ddp"]
        self.check_as(ranks, ranks, split=False)
        with sis.Client(self.server.address) as client:
            trainer = types.SimpleNamespace(
                state=types.SimpleNamespace(global_step=4), sis_client=client, sis_run=client.get_run("ddp").run
            )
            self.check_logged(trainer, ranks[0][0])
