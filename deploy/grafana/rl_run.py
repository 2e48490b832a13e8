"""The dashboard "RL run": what SIS does to the tokens of training runs, and why.

docs/math.md, section 6, says how to read it.
"""

from __future__ import annotations

from typing import List

from deploy.grafana import expressions as promql
from deploy.grafana import panels, variables
from deploy.grafana.panels import (
    COUNT, HALF, NATS, SHARE, TOKENS_PER_SECOND, Column, Panel, bars, distribution, lines,
)  # fmt: skip


def board() -> panels.Dashboard:
    built = variables.board(
        "SIS: RL run",
        "sis-rl-run",
        "Accept rates, deviations and corrections of training runs. Everything is a mean per scored token (accepted, "
        "rejected or outside the recorded set) unless its panel says otherwise. Gaps mean that nothing was evaluated "
        "in the window. Runs beyond a server's --metric_runs, the quietest, are not here: they have no series of "
        "their own.",
        [*variables.runs(), variables.by(), variables.window()],
    )
    panels.add(built, "Runs", [_runs()])
    panels.add(built, "Decisions", _decisions())
    panels.add(built, "How far the policies are apart", _distance())
    panels.add(built, "Drift by age", _ages())
    panels.add(built, "Missing tokens", _missing())
    panels.add(built, "Corrections side by side", _corrections())
    return built


def _runs() -> Panel:
    each = promql.ALL_LABELS
    accepted = promql.rate("sis_tokens_total", where='decision="accepted"', group=each)
    missing = promql.rate("sis_tokens_total", where='decision="missing"', group=each)
    evaluated = promql.rate("sis_tokens_total", group=each)
    return panels.rows(
        "Runs",
        [
            Column(
                "Verdict",
                promql.now("sis_run_verdict", each),
                COUNT,
                {0: ("✓ healthy", "green"), 1: ("▲ worth a look", "orange"), 2: ("✖ broken", "red")},
            ),
            Column("Policy version", promql.now("sis_run_policy_version", each), COUNT),
            Column("Evaluated", evaluated, TOKENS_PER_SECOND),
            Column("Accept rate", promql.ratio(accepted, promql.scored(group=each)), SHARE),
            Column("Expected", promql.per_token("sis_expected_acceptance_total", each), SHARE),
            Column("D per token", promql.per_token("sis_deviation_nats_total", each), NATS),
            Column(
                "D_SIS / D",
                promql.ratio(promql.rate("sis_modified_deviation_nats_total", group=each), promql.rate("sis_deviation_nats_total", group=each)),
                SHARE,
            ),
            Column(
                "Effective sample size",
                promql.effective_sample_size('correction="applied"', group=each),
                SHARE,
            ),
            Column("Missing", promql.ratio(missing, evaluated), SHARE),
        ],
        {"run": "Run", "task": "Task", "algorithm": "Algorithm", "model": "Model"},
        what="The current state of the chosen runs; means over the window.",
        normal="Verdicts are healthy, accept rates of 0.6 to 0.95, D far below 1 nat per token, nothing missing. A run "
        "in which nothing was evaluated in the window has a verdict and a version, and nothing else.",
        otherwise="the page and `sisctl run show` say why a run is worth a look or broken, and what to do. The panels "
        "below show each column by run and over time.",
        runbooks=["accept_rate_low", "engines_differ", "missing_tokens", "fresh_tokens_differ", "trainer_stopped"],
    )


def _decisions() -> List[Panel]:
    accepted = promql.rate("sis_tokens_total", where='decision="accepted"')
    points = promql.rate("sis_prefix_tokens_total", "top_k")
    return [
        lines(
            "Accept rate",
            SHARE,
            {
                "{{$by}} sampled": promql.ratio(accepted, promql.scored()),
                "{{$by}} mean of a": promql.histogram_mean("sis_acceptance_probability_ratio"),
                "{{$by}} expected": promql.per_token("sis_expected_acceptance_total"),
            },
            what="The share of accepted tokens: as sampled; as the mean of a, without the noise of the draw; and as "
            "expected, the mean of (1 - residual mass) / envelope, without the noise of the tokens.",
            normal="all three agree: 0.76 to 0.91 between two engines with the same weights, 0.6 to 0.8 after a drift "
            "of 0.2 nats.",
            otherwise="low with low D: K is too small, or the engines' log-probs differ in kind; look at residual "
            "mass. Low with high D: from the first draw on, the engines differ (a temperature on one side, a shift); "
            "growing with age and training, the policies have drifted apart. The runbook says how to tell. A lasting "
            "gap between sampled and expected means that the policy has been trained on these very tokens (later "
            "passes over a rollout), or that the recorded log-probs are not of the distribution that was sampled from.",
            runbooks=["accept_rate_low", "accept_rate_collapsing"],
            width=HALF,
            largest=1,
            alert_below=0.5,
        ),
        bars(
            "Accept rate against k",
            SHARE,
            promql.ratio(promql.rate("sis_prefix_expected_acceptance_total", "top_k"), points),
            "top_k",
            what="The expected accept rate if only the k most probable recorded tokens were used, for each k of the "
            "prefix curves that trainers ask for (the first 16 of a run), now.",
            normal="flat, or falling slowly with k: a larger k lowers the residual mass and raises the envelope.",
            otherwise="much lower at large k: single improbable tokens set the envelope; evaluate with a smaller "
            "top_k. No bars: no trainer asks (prefix_curve).",
            runbooks=["accept_rate_low"],
            width=6,
            largest=1,
        ),
        bars(
            "Residual mass against k",
            SHARE,
            promql.ratio(promql.rate("sis_prefix_residual_mass_total", "top_k"), points),
            "top_k",
            what="The current policy's mass outside the k most probable recorded tokens, for the same k, now.",
            normal="falls with k, to a few hundredths at the k in use.",
            otherwise="still falling steeply at the largest k: record more (a larger K). Above 0.7 whatever k is: "
            "other tokens, see Residual mass. No bars: no trainer asks (prefix_curve).",
            runbooks=["accept_rate_low"],
            width=6,
            largest=1,
        ),
        lines(
            "D and D_SIS per token",
            NATS,
            {
                "{{$by}} D": promql.per_token("sis_deviation_nats_total"),
                "{{$by}} D_SIS": promql.per_token("sis_modified_deviation_nats_total"),
            },
            what="The mean of |log w|, and the same counting accepted tokens as 0.",
            normal="0.03 to 0.07 nats between engines of the same weights (bfloat16, 4 bits), and more with age "
            "and with every pass over the same rollouts. D_SIS is well below D.",
            otherwise="above 1 nat, or a jump at the first step: the engines' log-probs are of different kinds, "
            "shifted by a token, or at another temperature. D_SIS near 0 means that nearly no correction is applied, "
            "not that the gradient is right: check D.",
            runbooks=["engines_differ", "d_sis_near_d"],
            alert_above=1,
        ),
        lines(
            "D_SIS / D",
            SHARE,
            {"{{$by}}": promql.ratio(promql.rate("sis_modified_deviation_nats_total"), promql.rate("sis_deviation_nats_total"))},
            what="The share of the deviation that remains in the applied weights.",
            normal="0.2 to 0.8. Meaningless if D is nearly 0.",
            otherwise="near 1: the tokens that deviate are rejected or outside the set, and SIS hardly acts. Near 0: "
            "nearly everything is accepted.",
            runbooks=["d_sis_near_d"],
            largest=1,
            alert_above=0.9,
        ),
        lines(
            "Decisions",
            SHARE,
            {
                "{{$by}} {{decision}}": promql.share(
                    promql.rate("sis_tokens_total", "decision"), promql.rate("sis_tokens_total")
                )
            },
            what="Shares of all evaluated tokens by decision.",
            normal="mostly accepted, a few percent outside the set, none missing.",
            otherwise="much outside_top_k: ids or sampling filters don't match; if they do, K is too small for this "
            "temperature. If most are: the two sides use different tokens.",
            runbooks=["accept_rate_low", "missing_tokens"],
            stacked=True,
        ),
    ]


def _distance() -> List[Panel]:
    return [
        lines(
            "KL divergence",
            NATS,
            {"{{$by}}": promql.per_token("sis_k3_nats_total")},
            what="The mean of k3 = w - 1 - log w, an estimate of KL(behaviour || current) per token. Each token counts "
            "at most 64.",
            normal="below 0.01 nats on fresh rollouts, rising with age and with passes over the same rollouts.",
            otherwise="high from the first draw on: the engines differ. A steady rise over steps of the same "
            "age: the updates are too large for the lag.",
            runbooks=["engines_differ"],
        ),
        lines(
            "Total variation on the set",
            SHARE,
            {"{{$by}}": promql.per_token("sis_total_variation_total")},
            what="Half the sum of |p - q| over the recorded tokens: the distance without sampling noise. Only "
            "evaluations that ask for it (total_variation) add to it, so the mean is right if all do.",
            normal="a few hundredths; 0 if no evaluation requests it.",
            otherwise="high with low KL: the policies differ in tokens that are seldom sampled.",
            runbooks=["engines_differ"],
        ),
        lines(
            "Log-envelope",
            NATS,
            {
                "{{$by}} mean": promql.ratio(
                    f"({promql.rate('sis_log_envelope_nats_sum')}"
                    f" - {promql.rate('sis_negative_log_envelope_nats_total')})",
                    promql.rate("sis_log_envelope_nats_count"),
                ),
                "{{$by}} 99%": promql.quantile_of(0.99, "sis_log_envelope_nats"),
            },
            what="The mean of log M, the largest log-ratio among the recorded tokens, and the value that 99% stay "
            "below. The accept rate of a token is at best exp(-log M).",
            normal="mean 0.05 to 0.5 nats. It is slightly above 0 even for equal policies, by the encoding's rounding.",
            otherwise="rising while D is steady: the tails are the cause, and a smaller k may accept more.",
            runbooks=["accept_rate_low"],
            least=None,
        ),
        lines(
            "Residual mass",
            SHARE,
            {
                "{{$by}} mean": promql.histogram_mean("sis_residual_mass_ratio"),
                "{{$by}} 99%": promql.quantile_of(0.99, "sis_residual_mass_ratio"),
            },
            what="The mean of the current policy's mass outside the recorded set, and the value that 99% stay below. "
            "It bounds the bias of the distribution of accepted tokens.",
            normal="a mean of a few hundredths or less.",
            otherwise="above 0.7: the two sides use different tokens (rows shifted by one, other ids, another "
            "prompt or template), whatever K is. Rising during training: the policy moves to tokens that the behaviour "
            "policy thought improbable. The rollouts are too old, or K is too small.",
            runbooks=["accept_rate_low", "residual_mass_high"],
            largest=1,
        ),
        lines(
            "|log w|",
            NATS,
            {
                "{{$by}} 50%": promql.quantile_of(0.5, "sis_abs_log_ratio_nats"),
                "{{$by}} 90%": promql.quantile_of(0.9, "sis_abs_log_ratio_nats"),
                "{{$by}} 99%": promql.quantile_of(0.99, "sis_abs_log_ratio_nats"),
            },
            what="The values of |log w| that 50%, 90% and 99% of the tokens stay below.",
            normal="the median far below the mean D: most tokens hardly differ, few differ much.",
            otherwise="a high median: everything is shifted (temperature, another kind of log-probs), not single "
            "tokens.",
            runbooks=["engines_differ"],
        ),
        lines(
            "Tails of the ratios",
            SHARE,
            {
                "{{$by}} beyond {{bound}}": promql.share(
                    promql.rate("sis_ratios_beyond_bound_total", "bound"), promql.scored()
                )
            },
            what="The share of tokens with w beyond the usual clip bounds: below bounds < 1, above bounds > 1.",
            normal="under 10% beyond 0.8 and 1.2, under 1% beyond 0.5 and 2, next to nothing beyond 5.",
            otherwise="more beyond 5 than a token in a thousand: these few tokens dominate plain importance sampling; "
            "check the effective sample size.",
            runbooks=["effective_sample_size_low"],
        ),
        distribution(
            "Distribution of |log w|",
            NATS,
            _buckets("sis_abs_log_ratio_nats"),
            what="Tokens per second by |log w|, over all chosen runs.",
            normal="most in the lowest buckets, fewer above.",
            otherwise="two bands: two populations of tokens, of two engines, two temperatures, or two ages.",
            runbooks=["engines_differ"],
        ),
        distribution(
            "Distribution of log M",
            NATS,
            _buckets("sis_log_envelope_nats"),
            what="Tokens per second by log-envelope, over all chosen runs.",
            normal="most below 0.5 nats.",
            otherwise="most above 1 nat: at most one token in three can be accepted.",
            runbooks=["accept_rate_low"],
        ),
        distribution(
            "Distribution of acceptance",
            SHARE,
            _buckets("sis_acceptance_probability_ratio"),
            what="Tokens per second by the probability a that the draw accepts them, over all chosen runs. Tokens "
            "outside the set have 0.",
            normal="most near 1.",
            otherwise="two peaks, at 0 and at 1: many tokens are outside the set. All in the middle: the envelope is "
            "too high for every token, because of a tail or a temperature.",
            runbooks=["accept_rate_low"],
        ),
    ]


def _buckets(metric: str) -> str:
    return promql.rate(f"{metric}_bucket", "le", group="", window="$__rate_interval")


def _ages() -> List[Panel]:
    scored = promql.scored("age")

    def mean(metric: str) -> str:
        return promql.ratio(promql.rate(metric, "age"), scored)

    weight, squared = (promql.rate(f"sis_modified_ratio_{name}total", "age") for name in ("", "squared_"))
    return [
        lines(
            "Tokens by age",
            SHARE,
            {"{{$by}} {{age}}": promql.share(scored, promql.scored())},
            what="Shares of the scored tokens by age, in policy versions behind. ahead: labelled with a version that "
            "the run does not have yet.",
            normal="as the training loop is designed: 0 on-policy, up to N - 1 with N updates per rollout, more if "
            "rollouts and training run in parallel.",
            otherwise="older than that: rollouts wait too long before they are trained on, or workers don't get the "
            "last weights. ahead: the trainer does not advance the run's version, or workers label it wrong.",
            runbooks=["accept_rate_collapsing", "missing_tokens"],
            stacked=True,
        ),
        lines(
            "Accept rate by age",
            SHARE,
            {
                "{{$by}} {{age}}": promql.ratio(
                    promql.rate("sis_tokens_total", "age", where='decision="accepted"'), scored
                )
            },
            what="The share of accepted tokens, by age in policy versions.",
            normal="falls slowly with age.",
            otherwise="low already at the youngest age: the engines differ; rule that out first if no token is at "
            "age 0. A steep fall: the updates are too large for the lag.",
            runbooks=["accept_rate_low", "accept_rate_collapsing", "stale_tokens_differ"],
            largest=1,
        ),
        lines(
            "Effective sample size by age",
            SHARE,
            {"{{$by}} {{age}}": promql.ratio(f"{weight} ^ 2", f"{squared} * {scored}")},
            what="The effective sample size of the modified ratios, per token, by age.",
            normal="above 0.5, and falls slowly with age.",
            otherwise="a steep fall: from that age on few tokens carry the gradient. A max_staleness below it costs "
            "little.",
            runbooks=["effective_sample_size_low", "stale_tokens_differ"],
            largest=1,
        ),
        lines(
            "D by age",
            NATS,
            {"{{$by}} {{age}}": mean("sis_deviation_nats_total")},
            what="The mean of |log w| by age: how far the policy has moved since the token was sampled.",
            normal="0.03 to 0.07 nats at age 0, between engines of the same weights, and more with age.",
            otherwise="high at age 0: the engines differ. A steep rise: the updates are too large for the lag.",
            runbooks=["fresh_tokens_differ", "stale_tokens_differ"],
        ),
        lines(
            "D_SIS by age",
            NATS,
            {"{{$by}} {{age}}": mean("sis_modified_deviation_nats_total")},
            what="The mean of |log w| by age, with accepted tokens as 0: the drift that remains in the weights.",
            normal="well below D at every age.",
            otherwise="near D from some age on: nearly no token of that age is accepted, and SIS hardly acts.",
            runbooks=["d_sis_near_d", "stale_tokens_differ"],
        ),
        lines(
            "Policy version",
            COUNT,
            {"{{$by}}": promql.now("sis_run_policy_version")},
            what="The version of the weights that trainers hold now; the largest of each group.",
            normal="rises by one with each step.",
            otherwise="a flat line: no trainer advances it, and ages are counted too low. A fall: the run was "
            "created again.",
        ),
    ]


def _missing() -> List[Panel]:
    return [
        lines(
            "Missing tokens by reason",
            SHARE,
            {
                "{{$by}} {{reason}}": promql.share(
                    promql.rate("sis_missing_tokens_total", "reason"), promql.rate("sis_tokens_total")
                )
            },
            what="Shares of all evaluated tokens that have no record. They keep the trainer's own ratio: plain "
            "importance sampling.",
            normal="0, or few of reason stale where the run has a limit.",
            otherwise="the reason says what to do: evicted, trainers don't release or the cache is too small; "
            "never_arrived, workers die or ids don't agree (sisctl sequence list shows what has come); stale, rollouts "
            "wait longer than max_staleness allows; unknown_version, the trainer "
            "does not announce its labels; the other three, the engine gives its own tokens no usable log-prob.",
            runbooks=["missing_tokens", "unusable_log_probs", "unknown_version", "corrupt_records"],
            alert_above=0.01,
        ),
        lines(
            "Envelope violations",
            SHARE,
            {"{{$by}}": promql.per_token("sis_envelope_violations_total")},
            what="The share of tokens whose own ratio exceeds the envelope of their set.",
            normal="0.",
            otherwise="log p(y) comes from another computation than the slots; many mean that the arrays are "
            "misaligned.",
            runbooks=["envelope_violations"],
            alert_above=0.001,
        ),
        lines(
            "Tokens stored and evaluated",
            TOKENS_PER_SECOND,
            {
                "{{$by}} stored": promql.rate("sis_ingest_positions_total"),
                "{{$by}} evaluated": promql.rate("sis_tokens_total"),
            },
            what="Positions that workers stored, and tokens that trainers evaluated, each once per draw.",
            normal="evaluated is stored times the number of updates that each token is used for.",
            otherwise="stored without evaluated: the trainer has stopped, or uses other ids. Evaluated without "
            "stored: it continues with old rollouts.",
            runbooks=["ingest_stalled"],
        ),
        lines(
            "Tokens that the totals leave out",
            TOKENS_PER_SECOND,
            {"{{$by}} {{totals}}": promql.rate("sis_uncounted_tokens_total", "totals")},
            what="Evaluated tokens that their step's totals omit, because these are out of memory. all: omitted from "
            "all totals and from these metrics; prefix_curve and corrections: omitted from these parts.",
            normal="0.",
            otherwise="many slices with gaps between them, or many sequences in a small cache: a sixteenth of "
            "--cache_bytes is for the totals of all runs (sis_step_bytes). Decisions are still right.",
            runbooks=["cache_near_limit"],
        ),
    ]


def _corrections() -> List[Panel]:
    tokens = promql.rate("sis_correction_tokens_total", "correction")
    plain = promql.rate("sis_correction_gradient_mass_total", where='correction="plain"')
    legend = "{{$by}} {{correction}}"

    def mean(metric: str) -> str:
        return promql.ratio(promql.rate(metric, "correction"), tokens)

    return [
        lines(
            "Effective sample size",
            SHARE,
            {legend: promql.effective_sample_size("", "correction")},
            what="(Sum of weights)^2 / (sum of squares x tokens): the effective sample size as a share of the tokens. "
            "plain is w, clipped is w cut to [0.8, 1.2], applied is the modified ratio; others are only observed.",
            normal="above 0.9 for applied.",
            otherwise="plain low, applied high: the correction does its work. Applied low: few tokens carry the "
            "gradient.",
            runbooks=["effective_sample_size_low"],
            largest=1,
            alert_below=0.3,
        ),
        lines(
            "Tokens touched",
            SHARE,
            {legend: mean("sis_correction_touched_tokens_total")},
            what="The share of tokens whose weight is not w.",
            normal="for applied the accept rate, less the tokens with w = 1.",
            otherwise="next to 0: this correction does nothing on your traffic.",
            largest=1,
        ),
        lines(
            "Tokens zeroed",
            SHARE,
            {legend: mean("sis_correction_zeroed_tokens_total")},
            what="The share of tokens whose weight is 0: they teach nothing.",
            normal="0 for plain, clipped and applied; a few percent for masks.",
            otherwise="a large share: the mask's bounds are too narrow for this mismatch.",
            largest=1,
        ),
        lines(
            "Mean weight",
            COUNT,
            {legend: mean("sis_correction_weight_total")},
            what="What the weights add up to per token. Over many tokens the mean of w is 1; how far another lies from "
            "1 tells of its bias.",
            normal="0.9 to 1.1.",
            otherwise="plain far from 1: log-probs are of different kinds, or few tokens dominate. Below 1: the "
            "correction makes the steps smaller.",
            runbooks=["engines_differ"],
        ),
        lines(
            "Mean |log weight|",
            NATS,
            {legend: mean("sis_correction_abs_log_weight_nats_total")},
            what="How far the weights are from 1, a measure of their variance; of plain it is D, of applied D_SIS, per "
            "token. Tokens of weight 0 count 0.",
            normal="smaller than that of plain.",
            otherwise="as large as that of plain: the correction leaves the tails as they are.",
            runbooks=["d_sis_near_d"],
        ),
        lines(
            "Gradient mass against plain",
            SHARE,
            {legend: promql.share(promql.rate("sis_correction_gradient_mass_total", "correction"), plain)},
            what="The sum of |weight x advantage|, as a multiple of that with plain w. Only evaluations with "
            "advantages add to it.",
            normal="0.8 to 1.2.",
            otherwise="far below 1: the correction takes most of the gradient away. No lines: no evaluation has "
            "advantages.",
        ),
    ]
