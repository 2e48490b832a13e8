"""PromQL over the runs that the variables of the "RL run" dashboard choose.

Expressions first sum the replicas' values of a run, then join the run's labels from sis_run_info. They
then sum by the label that the variable `by` names, to compare single runs, tasks, algorithms or models.
"""

# One series per run, with its labels. While a run is reopened with other labels, replicas may show
# both for a moment: topk keeps one of them, as a join needs.
RUNS = (
    "topk by (job, run) (1, max by (job, run, task, algorithm, model) (sis_run_info{"
    'job=~"$job", run=~"$run", task=~"$task", algorithm=~"$algorithm", model=~"$model"}))'
)
# All values of `by` together, for tables.
ALL_LABELS = "run, task, algorithm, model"


def rate(metric: str, *labels: str, where: str = "", group: str = "$by", window: str = "$window") -> str:
    """Per second, by `group` (may be empty) and these labels of the metric's own. `where`: further
    matchers."""
    matchers = 'job=~"$job", run=~"$run"' + (f", {where}" if where else "")
    left, summed = ", ".join(filter(None, (group, *labels))), ", ".join(("job", "run", *labels))
    return (
        f"sum by ({left}) (sum by ({summed}) (rate({metric}{{{matchers}}}[{window}]))"
        f" * on (job, run) group_left (task, algorithm, model) {RUNS})"
    )


def now(metric: str, group: str = "$by") -> str:
    """A gauge that replicas agree on: the largest of each group."""
    return (
        f'max by ({group}) (max by (job, run) ({metric}{{job=~"$job", run=~"$run"}})'
        f" * on (job, run) group_left (task, algorithm, model) {RUNS})"
    )


def ratio(numerator: str, denominator: str) -> str:
    """No sample where the denominator is 0: then nothing is known."""
    return f"{numerator} / ({denominator} > 0)"


def share(numerator: str, denominator: str, group: str = "$by") -> str:
    """As ratio, of a numerator with more labels than the group."""
    return f"{numerator} / on ({group}) group_left () ({denominator} > 0)"


def scored(*labels: str, group: str = "$by") -> str:
    """Tokens per second that are accepted, rejected or outside the set."""
    return rate("sis_tokens_total", *labels, where='decision!="missing"', group=group)


def per_token(metric: str, group: str = "$by") -> str:
    """A sum over scored tokens as their mean."""
    return ratio(rate(metric, group=group), scored(group=group))


def histogram_mean(metric: str) -> str:
    return ratio(rate(f"{metric}_sum"), rate(f"{metric}_count"))


def quantile(probability: float, buckets: str) -> str:
    """Returns a quantile of the rates of a histogram's buckets. Without observations it is NaN, which the
    comparison drops."""
    return f"histogram_quantile({probability}, {buckets}) >= 0"


def quantile_of(probability: float, metric: str) -> str:
    return quantile(probability, rate(f"{metric}_bucket", "le"))


def effective_sample_size(where: str = "", *labels: str, group: str = "$by") -> str:
    """Per token: (sum of weights)^2 / (sum of squares x tokens)."""
    parts = {
        name: rate(f"sis_correction_{name}_total", *labels, where=where, group=group)
        for name in ("weight", "weight_squared", "tokens")
    }
    return ratio(f"{parts['weight']} ^ 2", f"{parts['weight_squared']} * {parts['tokens']}")
