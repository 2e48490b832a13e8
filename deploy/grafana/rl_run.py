"""The dashboard "RL run": what SIS does to the tokens of training runs, and why.

docs/math.md, section 6, says how to read it.
"""

from __future__ import annotations

from typing import Any, List

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana import expressions as promql
from deploy.grafana import panels, variables
from deploy.grafana.panels import (
    COUNT, HALF, NATS, SHARE, TOKENS_PER_SECOND, Column, Text, bars, distribution, lines,
)  # fmt: skip


def board() -> Dashboard:
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
    panels.add(built, "Staleness and missing tokens", _staleness_and_missing())
    panels.add(built, "Corrections side by side", _corrections())
    return built


def _runs() -> Any:
    each = promql.ALL_LABELS
    accepted = promql.rate("sis_tokens_total", where='decision="accepted"', group=each)
    missing = promql.rate("sis_tokens_total", where='decision="missing"', group=each)
    evaluated = promql.rate("sis_tokens_total", group=each)
    return panels.rows(
        "Runs",
        Text(
            "The chosen runs as they are now: means over the window.",
            "Verdicts are healthy, accept rates of 0.6 to 0.95, D far below 1 nat per token, nothing missing. A run in "
            "which nothing was evaluated in the window has a verdict and a version, and nothing else.",
            "the page and `sisctl runs get` say why a run is worth a look or broken, and what to do. "
            "Or find the column below, by run and over time.",
            ["accept_rate_low", "engines_differ", "missing_tokens", "fresh_tokens_differ", "trainer_stopped"],
        ),
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
    )


def _decisions() -> List[Any]:
    accepted = promql.rate("sis_tokens_total", where='decision="accepted"')
    points = promql.rate("sis_prefix_tokens_total", "top_k")
    return [
        lines(
            "Accept rate",
            Text(
                "The share of accepted tokens: as sampled; as the mean of a, without the noise of the draw; and as "
                "expected, the mean of (1 - residual mass) / envelope, without the noise of the tokens.",
                "all three agree. 0.76 to 0.91 between two engines with the same weights, 0.6 to 0.8 after a drift of "
                "0.2 nats.",
                "low with low D: K is too small, or the engines' log-probs differ in kind; look at residual mass. Low "
                "with high D: from the first draw on, the engines differ (a temperature on one side, a shift); growing "
                "with age and training, the policies have drifted apart. The runbook says how to tell. A lasting gap "
                "between sampled and expected means that the policy has been trained on these very tokens (later passes "
                "over a rollout), or that the recorded log-probs are not of the distribution that was sampled from.",
                ["accept_rate_low", "accept_rate_collapsing"],
            ),
            SHARE,
            {
                "{{$by}} sampled": promql.ratio(accepted, promql.scored()),
                "{{$by}} mean of a": promql.histogram_mean("sis_acceptance_probability_ratio"),
                "{{$by}} expected": promql.per_token("sis_expected_acceptance_total"),
            },
            width=HALF,
            largest=1,
            alert_below=0.5,
        ),
        bars(
            "Accept rate against k",
            Text(
                "The expected accept rate if only the k most probable recorded tokens were used, for each k of the "
                "prefix curves that trainers ask for (the first 16 of a run), now.",
                "flat, or falling slowly with k: a larger k lowers the residual mass and raises the envelope.",
                "much lower at large k: single improbable tokens set the envelope; evaluate with a smaller top_k. No "
                "bars: no trainer asks (prefix_curve).",
                ["accept_rate_low"],
            ),
            SHARE,
            promql.ratio(promql.rate("sis_prefix_expected_acceptance_total", "top_k"), points),
            "top_k",
            width=6,
            largest=1,
        ),
        bars(
            "Residual mass against k",
            Text(
                "The current policy's mass outside the k most probable recorded tokens, for the same k, now.",
                "falls with k, to a few hundredths at the k in use.",
                "still falling steeply at the largest k: record more (a larger K). Above 0.7 whatever k is: other "
                "tokens, see Residual mass. No bars: no trainer asks (prefix_curve).",
                ["accept_rate_low"],
            ),
            SHARE,
            promql.ratio(promql.rate("sis_prefix_residual_mass_total", "top_k"), points),
            "top_k",
            width=6,
            largest=1,
        ),
        lines(
            "D and D_SIS per token",
            Text(
                "The mean of |log w|, and the same counting accepted tokens as 0.",
                "0.03 to 0.07 nats between engines of the same weights (bfloat16, 4 bits), and more with staleness and "
                "with every pass over the same rollouts. D_SIS lies well below D.",
                "above 1 nat, or a jump at the first step: the engines' log-probs are of different kinds, shifted by a "
                "token, or at another temperature. D_SIS near 0 means that nearly no correction is applied, not that "
                "the gradient is right: look at D.",
                ["engines_differ", "d_sis_near_d"],
            ),
            NATS,
            {
                "{{$by}} D": promql.per_token("sis_deviation_nats_total"),
                "{{$by}} D_SIS": promql.per_token("sis_modified_deviation_nats_total"),
            },
            alert_above=1,
        ),
        lines(
            "D_SIS / D",
            Text(
                "How much of the deviation is left in the weights that are used.",
                "0.2 to 0.8. Where D is nearly 0 the quotient means nothing.",
                "near 1: the tokens that deviate are rejected or outside the set, and SIS hardly acts. Near 0: nearly "
                "everything is accepted.",
                ["d_sis_near_d"],
            ),
            SHARE,
            {"{{$by}}": promql.ratio(promql.rate("sis_modified_deviation_nats_total"), promql.rate("sis_deviation_nats_total"))},
            largest=1,
            alert_above=0.9,
        ),
        lines(
            "Decisions",
            Text(
                "Shares of all evaluated tokens by decision.",
                "mostly accepted, a few percent outside the set, none missing.",
                "much outside_top_k: ids or sampling filters don't match; if they do, K is too small for this "
                "temperature. Most of them: the two sides speak of different tokens.",
                ["accept_rate_low", "missing_tokens"],
            ),
            SHARE,
            {
                "{{$by}} {{decision}}": promql.share(
                    promql.rate("sis_tokens_total", "decision"), promql.rate("sis_tokens_total")
                )
            },
            stacked=True,
        ),
    ]


def _distance() -> List[Any]:
    return [
        lines(
            "KL divergence",
            Text(
                "The mean of k3 = w - 1 - log w, an estimate of KL(behaviour || current) per token. Each token counts "
                "at most 64.",
                "below 0.01 nats on fresh rollouts, rising with staleness and with passes over the same rollouts.",
                "high from the first draw on: the engines differ. A steady rise over steps of the same staleness: the "
                "updates are too large for the lag.",
                ["engines_differ"],
            ),
            NATS,
            {"{{$by}}": promql.per_token("sis_k3_nats_total")},
        ),
        lines(
            "Total variation on the set",
            Text(
                "Half the sum of |p - q| over the recorded tokens: the distance without sampling noise. Only "
                "evaluations that ask for it (total_variation) add to it, so the mean is right if all do.",
                "a few hundredths; 0 if nobody asks.",
                "high with low KL: the policies differ in tokens that are seldom sampled.",
                ["engines_differ"],
            ),
            SHARE,
            {"{{$by}}": promql.per_token("sis_total_variation_total")},
        ),
        lines(
            "Log-envelope",
            Text(
                "The mean of log M, the largest log-ratio among the recorded tokens, and the value that 99% stay "
                "below. The accept rate of a token is at best exp(-log M).",
                "mean 0.05 to 0.5 nats. It is slightly above 0 even for equal policies, by the encoding's rounding.",
                "rising while D is steady: the tails are the cause, and a smaller k may accept more.",
                ["accept_rate_low"],
            ),
            NATS,
            {
                "{{$by}} mean": promql.ratio(
                    f"({promql.rate('sis_log_envelope_nats_sum')}"
                    f" - {promql.rate('sis_negative_log_envelope_nats_total')})",
                    promql.rate("sis_log_envelope_nats_count"),
                ),
                "{{$by}} 99%": promql.quantile_of(0.99, "sis_log_envelope_nats"),
            },
            least=None,
        ),
        lines(
            "Residual mass",
            Text(
                "The mean of the current policy's mass outside the recorded set, and the value that 99% stay below. It "
                "bounds the bias of what accepted tokens follow.",
                "a mean of a few hundredths or less.",
                "above 0.7: the two sides speak of different tokens (rows shifted by one, other ids, another prompt or "
                "template), whatever K is. Rising during training: the policy moves to tokens that the behaviour "
                "policy thought improbable. The rollouts are too old, or K is too small.",
                ["accept_rate_low", "residual_mass_high"],
            ),
            SHARE,
            {
                "{{$by}} mean": promql.histogram_mean("sis_residual_mass_ratio"),
                "{{$by}} 99%": promql.quantile_of(0.99, "sis_residual_mass_ratio"),
            },
            largest=1,
        ),
        lines(
            "|log w|",
            Text(
                "The size of the log-ratios: half, 90% and 99% of the tokens stay below.",
                "the median far below the mean D: most tokens hardly differ, few differ much.",
                "a high median: everything is shifted (temperature, another kind of log-probs), not single tokens.",
                ["engines_differ"],
            ),
            NATS,
            {
                "{{$by}} 50%": promql.quantile_of(0.5, "sis_abs_log_ratio_nats"),
                "{{$by}} 90%": promql.quantile_of(0.9, "sis_abs_log_ratio_nats"),
                "{{$by}} 99%": promql.quantile_of(0.99, "sis_abs_log_ratio_nats"),
            },
        ),
        lines(
            "Tails of the ratios",
            Text(
                "The share of tokens with w beyond the usual clip bounds: below those under 1, above the others.",
                "under 10% beyond 0.8 and 1.2, under 1% beyond 0.5 and 2, next to nothing beyond 5.",
                "more beyond 5 than a token in a thousand: these few tokens dominate plain importance sampling; look "
                "at the effective sample size.",
                ["effective_sample_size_low"],
            ),
            SHARE,
            {
                "{{$by}} beyond {{bound}}": promql.share(
                    promql.rate("sis_ratios_beyond_bound_total", "bound"), promql.scored()
                )
            },
        ),
        distribution(
            "Distribution of |log w|",
            Text(
                "Tokens per second by |log w|, over all chosen runs.",
                "most in the lowest buckets, thinning out upwards.",
                "two bands: two populations of tokens, of two engines, two temperatures, or two ages.",
                ["engines_differ"],
            ),
            NATS,
            _buckets("sis_abs_log_ratio_nats"),
        ),
        distribution(
            "Distribution of log M",
            Text(
                "Tokens per second by log-envelope, over all chosen runs.",
                "most below 0.5 nats.",
                "most above 1 nat: at most one token in three can be accepted.",
                ["accept_rate_low"],
            ),
            NATS,
            _buckets("sis_log_envelope_nats"),
        ),
        distribution(
            "Distribution of acceptance",
            Text(
                "Tokens per second by the probability a that the draw accepts them, over all chosen runs. Tokens "
                "outside the set have 0.",
                "most near 1.",
                "two heaps, at 0 and at 1: tokens outside the set are many. All in the middle: an envelope that is too "
                "high for every token, by a tail or by a temperature.",
                ["accept_rate_low"],
            ),
            SHARE,
            _buckets("sis_acceptance_probability_ratio"),
        ),
    ]


def _buckets(metric: str) -> str:
    return promql.rate(f"{metric}_bucket", "le", group="", window="$__rate_interval")


def _staleness_and_missing() -> List[Any]:
    by_staleness = promql.scored("staleness")
    return [
        lines(
            "Tokens by staleness",
            Text(
                "Shares of the scored tokens by how many policy versions they are behind.",
                "what the training loop is meant to do: 0 on-policy, up to N - 1 with N updates per rollout, more "
                "when rollouts and training run side by side.",
                "older than that: rollouts wait too long before they are trained on, or workers don't get the last "
                "weights.",
                ["accept_rate_collapsing", "missing_tokens"],
            ),
            SHARE,
            {"{{$by}} {{staleness}} behind": promql.share(by_staleness, promql.scored())},
            stacked=True,
        ),
        lines(
            "Accept rate by staleness",
            Text(
                "The share of accepted tokens among those that are so many policy versions behind.",
                "falls slowly with age.",
                "low at the youngest age already: the engines differ, and where no token is at 0 rule that out first. "
                "A steep fall: the updates are too large for the lag.",
                ["accept_rate_low", "accept_rate_collapsing", "stale_tokens_differ"],
            ),
            SHARE,
            {
                "{{$by}} {{staleness}} behind": promql.ratio(
                    promql.rate("sis_tokens_total", "staleness", where='decision="accepted"'), by_staleness
                )
            },
            largest=1,
        ),
        lines(
            "Missing tokens by reason",
            Text(
                "Shares of all evaluated tokens that have no record. They keep the trainer's own ratio: plain "
                "importance sampling.",
                "0, or few of reason stale where the run has a limit.",
                "the reason says what to do: evicted, trainers don't release or the cache is too small; never_arrived, "
                "workers die or ids don't agree (sisctl sequences lists what has come); stale, rollouts wait longer "
                "than max_staleness allows.",
                ["missing_tokens", "corrupt_pages"],
            ),
            SHARE,
            {
                "{{$by}} {{reason}}": promql.share(
                    promql.rate("sis_missing_tokens_total", "reason"), promql.rate("sis_tokens_total")
                )
            },
            alert_above=0.01,
        ),
        lines(
            "Envelope violations",
            Text(
                "The share of tokens whose own ratio lies above the envelope of their set.",
                "0.",
                "log p(y) comes from another computation than the slots; many mean that the arrays are misaligned.",
                ["envelope_violations"],
            ),
            SHARE,
            {"{{$by}}": promql.per_token("sis_envelope_violations_total")},
            alert_above=0.001,
        ),
        lines(
            "Policy version",
            Text(
                "The version of the weights that trainers hold now; the largest of each group.",
                "rises by one with each step.",
                "a flat line: no trainer advances it, and staleness is counted too low. A fall: the run was opened "
                "anew.",
            ),
            COUNT,
            {"{{$by}}": promql.now("sis_run_policy_version")},
        ),
        lines(
            "Tokens stored and evaluated",
            Text(
                "Positions that workers stored, and tokens that trainers evaluated, each once per draw.",
                "evaluated is stored times the number of updates that each token is used for.",
                "stored without evaluated: the trainer has stopped, or works on other ids. Evaluated without stored: "
                "it goes on with old rollouts.",
                ["ingest_stalled"],
            ),
            TOKENS_PER_SECOND,
            {
                "{{$by}} stored": promql.rate("sis_ingest_positions_total"),
                "{{$by}} evaluated": promql.rate("sis_tokens_total"),
            },
        ),
        lines(
            "Sequences outside their trust regions",
            Text(
                "The share of sequences that evaluations with trust_regions leave out of the update.",
                "a few hundredths; nothing if nobody asks.",
                "high: much of each rollout is thrown away, for the engine differs, or is too old, or the bounds are too "
                "tight.",
                ["sequences_left_out", "engines_differ"],
            ),
            SHARE,
            {
                "{{$by}}": promql.ratio(
                    promql.rate("sis_trust_region_sequences_total", where='result="outside"'),
                    promql.rate("sis_trust_region_sequences_total"),
                )
            },
        ),
        lines(
            "Tokens that the totals leave out",
            Text(
                "Evaluated tokens that are not in their step's totals, for want of room: all, in none of them nor in these "
                "metrics; prefix_curve and corrections, not in those parts.",
                "0.",
                "many slices with gaps between, or many sequences in few bytes of cache: a sixteenth of --cache_bytes is "
                "for the totals of all runs (sis_step_bytes). Decisions are right all the same.",
                ["cache_near_limit"],
            ),
            TOKENS_PER_SECOND,
            {"{{$by}} {{totals}}": promql.rate("sis_uncounted_tokens_total", "totals")},
        ),
        lines(
            "Inspections passed over",
            Text(
                "Slices chosen for inspection (the page's tokens, sisctl show and diagnose) whose values were not kept, "
                "since the incarnation began; the most of each group.",
                "flat after the first draws: then no more are chosen than fit.",
                "rises with each draw: --inspected_bytes is small for the sequences, or records are released before idle "
                "workers have looked. Decisions and totals are right all the same.",
            ),
            COUNT,
            {"{{$by}}": promql.now("sis_run_passed_over_inspections")},
        ),
    ]


def _corrections() -> List[Any]:
    tokens = promql.rate("sis_correction_tokens_total", "correction")
    plain = promql.rate("sis_correction_gradient_mass_total", where='correction="plain"')
    legend = "{{$by}} {{correction}}"

    def mean(metric: str) -> str:
        return promql.ratio(promql.rate(metric, "correction"), tokens)

    return [
        lines(
            "Effective sample size",
            Text(
                "(Sum of weights)^2 / (sum of squares x tokens): the share of the tokens that the weights are worth. "
                "plain is w, clipped is w cut to [0.8, 1.2], applied is what evaluations answered; the others are "
                "only watched (observe).",
                "above 0.9 for applied.",
                "plain low, applied high: the correction does its work. Applied low: few tokens carry the gradient.",
                ["effective_sample_size_low"],
            ),
            SHARE,
            {legend: promql.effective_sample_size("", "correction")},
            largest=1,
            alert_below=0.3,
        ),
        lines(
            "Tokens touched",
            Text(
                "The share of tokens whose weight is not w.",
                "for applied the accept rate, less the tokens with w = 1.",
                "next to 0: this correction does nothing on your traffic.",
            ),
            SHARE,
            {legend: mean("sis_correction_touched_tokens_total")},
            largest=1,
        ),
        lines(
            "Tokens zeroed",
            Text(
                "The share of tokens whose weight is 0: they teach nothing.",
                "0 for plain, clipped and applied; a few percent for masks.",
                "a large share: the mask's bounds are too narrow for this mismatch.",
            ),
            SHARE,
            {legend: mean("sis_correction_zeroed_tokens_total")},
            largest=1,
        ),
        lines(
            "Mean weight",
            Text(
                "What the weights add up to per token. Over many tokens the mean of w is 1; how far another lies from "
                "1 tells of its bias.",
                "0.9 to 1.1.",
                "plain far from 1: log-probs are of different kinds, or few tokens dominate. Below 1: the correction "
                "makes the steps smaller.",
                ["engines_differ"],
            ),
            COUNT,
            {legend: mean("sis_correction_weight_total")},
        ),
        lines(
            "Mean |log weight|",
            Text(
                "How far the weights are from 1, a measure of their variance; of plain it is D, of applied D_SIS, per "
                "token. Tokens of weight 0 count 0.",
                "smaller than that of plain.",
                "as large as that of plain: the correction leaves the tails as they are.",
                ["d_sis_near_d"],
            ),
            NATS,
            {legend: mean("sis_correction_abs_log_weight_nats_total")},
        ),
        lines(
            "Gradient mass against plain",
            Text(
                "The sum of |weight x advantage|, as a multiple of that with plain w. Only evaluations with advantages "
                "add to it.",
                "0.8 to 1.2.",
                "far below 1: the correction takes most of the gradient away. No lines: no evaluation has advantages.",
            ),
            SHARE,
            {legend: promql.share(promql.rate("sis_correction_gradient_mass_total", "correction"), plain)},
        ),
    ]
