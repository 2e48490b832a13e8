"""Metrics of a trainer's own loop in an experiment tracker: Weights & Biases, MLflow, trackio or
TensorBoard. All get the same names, with "sis/" before them.

    import sis.tracking

    log = sis.tracking.to_wandb(wandb.init(project="p"))
    for step in range(steps):
        evaluation = client.evaluate(run, records, draw=step, ...)
        tokens = client.inspect_run(run).tokens if step % 100 == 0 else ()
        log(step, sis.tracking.metrics(evaluation), tokens)

With several ranks, log on one of them what `list_steps` returns: it is over all. The integrations of TRL and verl log
their metrics themselves, and the table as `SisConfig.token_table_steps` says. The trackers are the
caller's, opened and closed by them; none is imported here before it is used.
"""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Union

from sis._evaluation import Evaluation, Step
from sis._inspection import TokenCounts
from sis._step_metrics import missing_counts, missing_shares, step_metrics

COLUMNS = ("token_id", "text", "accepted", "rejected", "max_error")


class Log(Protocol):
    """Writes what there is at a step, and, if any are given, a table of tokens, most distinctive
    first, with the columns COLUMNS. step: None for W&B and trackio: where they are."""

    def __call__(
        self, step: Optional[int], metrics: Mapping[str, float], tokens: Sequence[TokenCounts] = ()
    ) -> None: ...


def metrics(answer: Union[Evaluation, Step]) -> Dict[str, float]:
    """Returns the metrics of an evaluation or a step.

    Args:
        answer: The evaluation, or the step.

    Returns:
        Metrics of the totals by name, and "missing_REASON" for each reason, a share of the scored and the missing
        positions as "missing" is. With age_metrics for a step.
    """
    ages = {} if isinstance(answer, Evaluation) else age_metrics(answer)
    counts = missing_counts(answer.missing) if isinstance(answer, Evaluation) else answer.missing
    return {**step_metrics(answer.totals), **missing_shares(counts, answer.totals), **ages}


def age_metrics(step: Step) -> Dict[str, float]:
    """Returns accept rate, D per token (nats) and tokens by age in policy versions.

    Args:
        step: The step.

    Returns:
        Metrics by name, as "age_4-7/accept_rate". The oldest class is "age_32", as some trackers refuse a plus sign.
    """
    return {
        f"age_{age.name.rstrip('+')}/{name}": value
        for age in step.ages
        for name, value in (("accept_rate", age.accept_rate), ("d", age.mean_d), ("tokens", age.scored))
    }


def to_wandb(run: Any, text: Callable[[int], str] = str) -> Log:
    """Returns a log for Weights & Biases.

    Args:
        run: The result of wandb.init.
        text: Function from a token id to its text, as a tokenizer's `decode`.

    Returns:
        The log.
    """
    import wandb

    return _to_run(run, lambda tokens: wandb.Table(columns=list(COLUMNS), data=_rows(tokens, text)))


def to_trackio(run: Any, text: Callable[[int], str] = str) -> Log:
    """Returns a log for trackio. Needs pandas.

    Args:
        run: The result of trackio.init.
        text: Function from a token id to its text, as a tokenizer's `decode`.

    Returns:
        The log.
    """
    import pandas
    import trackio

    def table(tokens: Sequence[TokenCounts]) -> Any:
        return trackio.Table(dataframe=pandas.DataFrame(_rows(tokens, text), columns=list(COLUMNS)))

    return _to_run(run, table)


def _to_run(run: Any, table: Callable[[Sequence[TokenCounts]], Any]) -> Log:
    def log(step: Optional[int], metrics: Mapping[str, float], tokens: Sequence[TokenCounts] = ()) -> None:
        values: Dict[str, Any] = dict(_named(metrics))
        if tokens:
            values["sis/tokens"] = table(tokens)
        run.log(values, step=step)

    return log


def to_mlflow(run_id: str, text: Callable[[int], str] = str) -> Log:
    """Returns a log for MLflow. Needs mlflow, or mlflow-skinny and pandas.

    Tables are artifacts, sis/tokens-STEP.json, as mlflow.load_table reads them.

    Args:
        run_id: `info.run_id` of mlflow.start_run.
        text: Function from a token id to its text, as a tokenizer's `decode`.

    Returns:
        The log.
    """
    import mlflow
    from mlflow.entities import Metric

    client = mlflow.MlflowClient()

    def log(step: Optional[int], metrics: Mapping[str, float], tokens: Sequence[TokenCounts] = ()) -> None:
        now = int(time.time() * 1000)
        points = [Metric(name, value, now, step) for name, value in _named(metrics)]
        client.log_batch(run_id, points)
        if tokens:
            columns = dict(zip(COLUMNS, map(list, zip(*_rows(tokens, text)))))
            client.log_table(run_id, columns, f"sis/tokens-{step}.json")

    return log


def to_tensorboard(writer: Any, text: Callable[[int], str] = str) -> Log:
    """Returns a log for TensorBoard. Tables are texts in Markdown.

    Args:
        writer: A torch.utils.tensorboard.SummaryWriter.
        text: Function from a token id to its text, as a tokenizer's `decode`.

    Returns:
        The log.
    """

    def log(step: Optional[int], metrics: Mapping[str, float], tokens: Sequence[TokenCounts] = ()) -> None:
        for name, value in _named(metrics):
            writer.add_scalar(name, value, step)
        if tokens:
            rows: List[Sequence[Any]] = [COLUMNS, ["---"] * len(COLUMNS), *_rows(tokens, text)]
            lines = ("| " + " | ".join(map(_cell, row)) + " |" for row in rows)
            writer.add_text("sis/tokens", "\n".join(lines), step)

    return log


def _named(metrics: Mapping[str, float]) -> List[Tuple[str, float]]:
    """Finite ones: for others there is no point on a chart and in some trackers no value."""
    return [(f"sis/{name}", float(value)) for name, value in metrics.items() if math.isfinite(value)]


def _rows(tokens: Sequence[TokenCounts], text: Callable[[int], str]) -> List[List[Any]]:
    return [[token.token_id, text(token.token_id), token.accepted, token.rejected, token.max_error] for token in tokens]


def _cell(value: Any) -> str:
    """One cell of Markdown, whatever the token's text is."""
    plain = str(value).replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`")
    return plain.replace("\n", "\\n").replace("\r", "\\r").replace("<", "&lt;")
