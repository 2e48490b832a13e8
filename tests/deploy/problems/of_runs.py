"""Problems of trainers and workers. Each has a separate run with the name of its alert."""

import contextlib
from typing import Any, Dict, List

import sis
from server.testing.live_server import LiveServer
from tests.deploy.problems.problem import SAMPLING, Problem, uniform_block
from tests.integration.faulty_training import FaultyTraining


class WrongValues(Problem):
    """The trainer evaluates with this fault. `others`: alerts that the same fault makes."""

    def __init__(
        self, server: LiveServer, client: sis.Client, alert: str, others: List[str] = (), load: Dict[str, Any] = {},
        **fault: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.server, self.client, self.run_id = server, client, alert
        self.alerts = dict.fromkeys([alert, *others], {"run": alert})
        self.training, self.fault = FaultyTraining(client, alert, **load), fault
        self.draw = 0

    def step(self) -> None:
        self.training.evaluate(self.draw, **(self.fault if self.present else {}))
        self.draw += 1


class TooFewSlots(WrongValues):
    """The policy is flatter than the recorded slots can show. Cured by rollouts with more of them."""

    def __init__(self, server: LiveServer, client: sis.Client) -> None:
        super().__init__(server, client, "SisResidualMassHigh", load={"top_k": 10, "scale": 1.8})
        self.few, self.many = self.training, FaultyTraining(client, f"{self.run_id}-more", top_k=100, scale=1.8)

    def step(self) -> None:
        self.training = self.few if self.present else self.many
        super().step()


class OfRun(Problem):
    """A worker and a trainer of an empty run."""

    def __init__(self, server: LiveServer, client: sis.Client, alert: str) -> None:
        super().__init__()
        self.server, self.client, self.run_id = server, client, alert
        self.alerts = {alert: {"run": alert}}
        self.run = client.create_run(alert, seed=1, vocabulary_size=32, top_k=4)
        self.count = 0

    def append(self, stream: sis.AppendStream, name: str, length: int = 8) -> None:
        stream.block(name, first_position=0, policy_version=0, **uniform_block(4, 8))
        stream.seal(name, length=length)


class EntriesRefused(OfRun):
    """A worker that seals its sequences before their end."""

    def step(self) -> None:
        self.count += 1
        with contextlib.suppress(sis.AppendError), self.client.append(self.run, sampling=SAMPLING) as stream:
            self.append(stream, str(self.count), 4 if self.present else 8)


class EvaluationsRefused(OfRun):
    """A trainer that holds other records than the server: its digests differ."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        with self.client.append(self.run, sampling=SAMPLING) as stream:
            self.append(stream, "s")
        (self.part,) = self.client.fetch_top_k(self.run, ["s"]).slices

    def step(self) -> None:
        part = self.part
        if self.present:
            part = sis.Slice(part.sequence, length=part.length, record_digest=part.record_digest ^ 1)
        values = uniform_block(4, 8)
        # Few of the last 64 may be refused in the end.
        for _ in range(5):
            with contextlib.suppress(sis.FailedPrecondition):
                self.client.evaluate(
                    self.run, [part], draw=self.count, log_probs=values["top_k_log_probs"],
                    sampled_log_probs=values["sampled_log_probs"],
                )  # fmt: skip
            self.count += 1


class Stopped(OfRun):
    """A worker appends and a trainer fetches until the problem. With `goes_on`, the worker then goes on. Its stream
    stays open."""

    def __init__(self, server: LiveServer, client: sis.Client, alert: str, goes_on: bool) -> None:
        super().__init__(server, client, alert)
        self.goes_on = goes_on
        self.stream = client.append(self.run, sampling=SAMPLING)

    def step(self) -> None:
        self.count += 1
        if self.goes_on or not self.present:
            self.append(self.stream, str(self.count))
            self.stream.flush()
        if not self.present:
            self.client.fetch_top_k(self.run, [str(self.count)])

    def close(self) -> None:
        super().close()
        self.stream.abandon()
