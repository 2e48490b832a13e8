"""Problems of trainers and workers. Each has a separate run with the name of its alert."""

import contextlib
from typing import Any, Dict, List, Optional

import sis
from server.testing.live_server import LiveServer
from tests.deploy.problems.problem import SAMPLING, Problem, uniform_block
from tests.integration.faulty_training import FaultyTraining


class WrongValues(Problem):
    """The trainer evaluates with this fault. `others`: alerts that the same fault makes."""

    def __init__(
        self,
        server: LiveServer,
        client: sis.Client,
        alert: str,
        others: List[str] = (),
        load: Optional[Dict[str, Any]] = None,
        healthy: Optional[Dict[str, Any]] = None,
        **fault: Any,
    ) -> None:
        super().__init__()
        self.server, self.client, self.run_id = server, client, alert
        self.alerts = dict.fromkeys([alert, *others], {"run": alert})
        self.training = FaultyTraining(client, alert, **(load or {}))
        self.healthy, self.fault = healthy or {}, fault
        self.draw = 0

    def step(self) -> None:
        self.training.evaluate(self.draw, **(self.fault if self.present else self.healthy))
        self.draw += 1


class TooFewSlots(WrongValues):
    """The policy is flatter than the recorded slots can show. Cured by rollouts with more of them."""

    def __init__(self, server: LiveServer, client: sis.Client) -> None:
        super().__init__(server, client, "SisResidualMassHigh", load={"top_k": 10, "scale": 1.8})
        self.few, self.many = self.training, FaultyTraining(client, f"{self.run_id}-more", top_k=100, scale=1.8)

    def step(self) -> None:
        self.training = self.few if self.present else self.many
        super().step()


class EntriesRefused(Problem):
    """A worker that seals its sequences before their end."""

    alerts = {"SisEntriesRefused": {"run": "SisEntriesRefused"}}

    def __init__(self, server: LiveServer, client: sis.Client) -> None:
        super().__init__()
        self.server, self.client, self.run_id = server, client, "SisEntriesRefused"
        self.run = client.create_run(self.run_id, seed=1, vocabulary_size=32, top_k=4)
        self.blocks = 0

    def step(self) -> None:
        self.blocks += 1
        with contextlib.suppress(sis.AppendError), self.client.append(self.run, sampling=SAMPLING) as stream:
            stream.block(str(self.blocks), first_position=0, policy_version=0, **uniform_block(4, 8))
            stream.seal(str(self.blocks), length=4 if self.present else 8)


class EvaluationsRefused(Problem):
    """A trainer that holds other records than the server: its digests differ."""

    alerts = {"SisEvaluationsRefused": {"run": "SisEvaluationsRefused"}}

    def __init__(self, server: LiveServer, client: sis.Client) -> None:
        super().__init__()
        self.server, self.client, self.run_id = server, client, "SisEvaluationsRefused"
        self.run = client.create_run(self.run_id, seed=1, vocabulary_size=32, top_k=4)
        with client.append(self.run, sampling=SAMPLING) as stream:
            stream.block("s", first_position=0, policy_version=0, **uniform_block(4, 8))
            stream.seal("s", length=8)
        (self.part,) = client.fetch_top_k(self.run, ["s"]).slices
        self.draw = 0

    def step(self) -> None:
        part = self.part
        if self.present:
            part = sis.Slice(part.sequence, length=part.length, record_digest=part.record_digest ^ 1)
        values = uniform_block(4, 8)
        # Few of the last 64 may be refused in the end.
        for _ in range(5):
            with contextlib.suppress(sis.FailedPrecondition):
                self.client.evaluate(
                    self.run,
                    [part],
                    draw=self.draw,
                    log_probs=values["top_k_log_probs"],
                    sampled_log_probs=values["sampled_log_probs"],
                )
            self.draw += 1


class _Rollouts(Problem):
    """A worker appends, and a trainer fetches."""

    def __init__(self, server: LiveServer, client: sis.Client, alert: str) -> None:
        super().__init__()
        self.server, self.client, self.run_id = server, client, alert
        self.alerts = {alert: {"run": alert}}
        self.run = client.create_run(alert, seed=1, vocabulary_size=32, top_k=4)
        self.stream = client.append(self.run, sampling=SAMPLING)
        self.sequences = 0

    def append(self) -> None:
        self.sequences += 1
        name = str(self.sequences)
        self.stream.block(name, first_position=0, policy_version=0, **uniform_block(4, 8))
        self.stream.seal(name, length=8)
        self.stream.flush()

    def fetch(self) -> None:
        self.client.fetch_top_k(self.run, [str(self.sequences)])

    def close(self) -> None:
        super().close()
        self.stream.abandon()


class IngestStalled(_Rollouts):
    """A worker that holds its stream open, and sends nothing."""

    def __init__(self, server: LiveServer, client: sis.Client) -> None:
        super().__init__(server, client, "SisIngestStalled")

    def step(self) -> None:
        if not self.present:
            self.append()
            self.fetch()


class TrainerStopped(_Rollouts):
    """Workers go on alone."""

    def __init__(self, server: LiveServer, client: sis.Client) -> None:
        super().__init__(server, client, "SisTrainerStopped")

    def step(self) -> None:
        self.append()
        if not self.present:
            self.fetch()
