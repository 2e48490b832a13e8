// The rules that judge runs, and the only copy of their thresholds. Alerts of the same names
// (deploy/prometheus/sis.alerts.yaml) read the findings from the metric sis_run_findings.
#pragma once

#include <array>
#include <string_view>

#include "absl/time/time.h"

namespace sis {

enum class Verdict { kHealthy, kWorthALook, kBroken };

struct Rule {
  // The name of the alert. docs/runbooks has its page. Alerts of broken runs are critical.
  std::string_view name;
  Verdict verdict;
  double threshold;  // values beyond it are findings
  std::string_view action;
};

// The worst rules first, and rules before others that they explain.
enum class RuleId {
  kCorruptRecords,
  kEvaluationsRefused,
  kEnvelopeViolations,
  kEnginesDiffer,
  kFreshTokensDiffer,
  kStaleTokensDiffer,
  kTrainerStopped,
  kIngestStalled,
  kEntriesRefused,
  kEvictedUnread,
  kUnusableLogProbs,
  kUnknownVersion,
  kMissingTokens,
  kResidualMassHigh,
  kAcceptRateCollapsing,
  kAcceptRateLow,
  kEffectiveSampleSizeLow,
  kDSisNearD,
  kCacheNearLimit,
};

inline constexpr std::array kRules = {
    // One damaged block is too many: the next damage may hit data without a checksum.
    Rule{"SisCorruptRecords", Verdict::kBroken, 0,
         "Look at this machine's memory and disk, and move the run to another one."},
    // Each refusal is a batch without decisions.
    Rule{"SisEvaluationsRefused", Verdict::kBroken, 0.05,
         "Read the message in the trainer's log: such a batch has no decisions."},
    // 0 if log p(y) and the slots come from the same computation. Rounding in a second computation
    // causes a few violations.
    Rule{
        "SisEnvelopeViolations", Verdict::kBroken, 0.001,
        "Take the sampled token's log-prob from the same gather as those of the slots: rows may be "
        "shifted by one, or come from another pass."},
    // D is 0.04 nats per token between two engines in bfloat16, and 0.07 with 4-bit weights. A mean
    // of 1 nat, a factor of e, has another cause.
    Rule{"SisEnginesDiffer", Verdict::kBroken, 1,
         "Run sisctl diagnose, or sisctl compare of engine and trainer on one text. Likely: "
         "temperature, template, tokenizer, rows shifted by one, weights that were not loaded."},
    Rule{"SisFreshTokensDiffer", Verdict::kWorthALook, 0.09,
         "Age does not explain it. sisctl diagnose distinguishes temperature, filters, precision "
         "and weights."},
    Rule{"SisStaleTokensDiffer", Verdict::kWorthALook, 0.5,
         "Fresh tokens deviate far less, so age is the cause: check that workers load new weights, "
         "make fewer updates per rollout, or set max_staleness."},
    Rule{"SisTrainerStopped", Verdict::kWorthALook, 0,
         "Check the trainer; delete the run if it has ended."},
    Rule{"SisIngestStalled", Verdict::kWorthALook, 0,
         "Check the workers: their streams are open, but send nothing."},
    Rule{"SisEntriesRefused", Verdict::kWorthALook, 0,
         "The worker's log names field, sequence, position and value of refused entries."},
    Rule{"SisEvictedUnread", Verdict::kWorthALook, 0,
         "Raise the quota or --cache_bytes, use a store, or slow down the workers."},
    // Engines return the log-prob of each token that they sample, except of a rare one that a
    // filter cut or that was rounded to -inf.
    Rule{"SisUnusableLogProbs", Verdict::kWorthALook, 0.001,
         "The recorder's warning names sequence, position and value. Update the engine, or change "
         "the sampling setting that excludes its own tokens."},
    // An unannounced label names weights of unknown age.
    Rule{"SisUnknownVersion", Verdict::kWorthALook, 0,
         "Let the trainer announce the label of its weights (AdvanceVersion) before engines load "
         "them, with the text that the engines return."},
    // In healthy operation no token is missing.
    Rule{"SisMissingTokens", Verdict::kWorthALook, 0.01,
         "Never arrived: check the workers. Evicted: release sooner, add memory, or use a store. "
         "Expired: time_to_live. Stale: max_staleness. Store down: its nodes."},
    // A few hundredths in healthy runs. Some tenths mean that tokens outside the slots matter.
    Rule{"SisResidualMassHigh", Verdict::kWorthALook, 0.2,
         "Record more slots (a larger K), or the same filters on both sides. Above 70% the two "
         "sides use different tokens, and no K helps."},
    // Staleness and learning change the rate by less than a quarter from one draw to the next.
    Rule{"SisAcceptRateCollapsing", Verdict::kWorthALook, 0.75,
         "Find what changed then: a version, precision, temperature, or weights that were not "
         "loaded. Otherwise the last updates were too large."},
    // The rate is 0.76 to 0.91 for engines that differ only in rounding, and 0.61 to 0.79 for
    // policies that have drifted by 0.2 nats.
    Rule{"SisAcceptRateLow", Verdict::kWorthALook, 0.5,
         "Residual mass high: K or the filters. D high: engines that differ, or drift. Both low: "
         "evaluate with a smaller top_k."},
    // Log-normal weights whose logarithms have a standard deviation of s nats leave exp(-s^2) of
    // the
    // tokens: 0.3 at 1.1 nats. Seven of ten tokens then cost time without adding information.
    Rule{"SisEffectiveSampleSizeLow", Verdict::kWorthALook, 0.3,
         "Fewer updates per rollout, or a correction that cuts large weights."},
    Rule{"SisDSisNearD", Verdict::kWorthALook, 0.9,
         "Nearly no deviating token is accepted: check residual mass and envelope."},
    // Eviction starts a little below the limit.
    Rule{"SisCacheNearLimit", Verdict::kWorthALook, 0.9,
         "Let trainers release used sequences, raise the quota or --cache_bytes, or use a store."},
};

// In nats per token. Below it, D is too small to compare with D_SIS.
inline constexpr double kMinDeviation = 0.01;
// In nats per token. Above it, fresh tokens have a fault of their own, whatever the stale tokens
// show (the check of staleness in sis/diagnose).
inline constexpr double kMaxFreshDeviation = 0.15;
// Older events are ignored.
inline constexpr absl::Duration kWindow = absl::Minutes(15);

// The verdict covers the last draws: at least kDrawsJudged, and at least kMinTokens tokens.
inline constexpr int kDrawsJudged = 4;
inline constexpr int kMinTokens = 1000;
// A pause is too long from twice the longest earlier one on, but at least kShortestPause and at
// most kWindow. Before reads and appends have alternated kTurnsKnown times, from kWindow on.
inline constexpr absl::Duration kShortestPause = absl::Minutes(1);
inline constexpr int kTurnsKnown = 2;

}  // namespace sis
