// The rules by which runs are judged, and their thresholds, which stand nowhere else. Alerts of the
// same names (deploy/prometheus/sis.alerts.yaml) read what was found from sis_run_findings.
#pragma once

#include <array>
#include <string_view>

#include "absl/time/time.h"

namespace sis {

enum class Verdict { kHealthy, kWorthALook, kBroken };

struct Rule {
  // The alert's. Its page is in docs/runbooks, and its severity is critical where a run is broken.
  std::string_view name;
  Verdict verdict;
  double threshold;  // what is beyond it is wrong
  std::string_view action;
};

// The worst first, and before others what explains them.
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
  kMissingTokens,
  kResidualMassHigh,
  kAcceptRateCollapsing,
  kAcceptRateLow,
  kEffectiveSampleSizeLow,
  kDSisNearD,
  kCacheNearLimit,
};

inline constexpr std::array kRules = {
    // A block that changed by itself is one too many: the next may be in something without a
    // checksum.
    Rule{"SisCorruptRecords", Verdict::kBroken, 0,
         "Look at this machine's memory and disk, and move the run to another one."},
    // Each refusal is a batch without decisions.
    Rule{"SisEvaluationsRefused", Verdict::kBroken, 0.05,
         "Read the message in the trainer's log: such a batch has no decisions."},
    // 0 if log p(y) and the slots come from one computation. Rounding in a second one makes a few.
    Rule{
        "SisEnvelopeViolations", Verdict::kBroken, 0.001,
        "Take the sampled token's log-prob from the same gather as those of the slots: rows may be "
        "shifted by one, or come from another pass."},
    // bfloat16 leaves 0.04 nats per token between two engines and weights of 4 bits 0.07. A mean of
    // 1 nat, a factor of e, is another kind of number.
    Rule{"SisEnginesDiffer", Verdict::kBroken, 1,
         "Ask sisctl diagnose, or sisctl compare of engine and trainer on one text: temperature, "
         "template, tokenizer, rows shifted by one, weights that were not loaded."},
    Rule{"SisFreshTokensDiffer", Verdict::kWorthALook, 0.09,
         "Age does not explain it: sisctl diagnose tells temperature, filters, precision and "
         "weights apart."},
    Rule{"SisStaleTokensDiffer", Verdict::kWorthALook, 0.5,
         "Fresh tokens deviate far less, so it is age: see that workers load new weights, make "
         "fewer updates "
         "per rollout, or set a max_staleness."},
    Rule{"SisTrainerStopped", Verdict::kWorthALook, 0,
         "Look at the trainer; delete the run if it has ended."},
    Rule{"SisIngestStalled", Verdict::kWorthALook, 0,
         "Look at the workers: their streams are open, and bring nothing."},
    Rule{"SisEntriesRefused", Verdict::kWorthALook, 0,
         "The worker's log names field, sequence, position and value of what was refused."},
    Rule{"SisEvictedUnread", Verdict::kWorthALook, 0,
         "Raise the quota or --cache_bytes, take a store, or slow the workers down."},
    // In healthy operation none is missing.
    Rule{"SisMissingTokens", Verdict::kWorthALook, 0.01,
         "Never arrived: ask the workers. Evicted: release sooner, more memory, or a store. "
         "Expired: time_to_live. Stale: max_staleness. Store down: its nodes."},
    // A few hundredths in healthy runs. Some tenths are lost to what the slots don't hold.
    Rule{"SisResidualMassHigh", Verdict::kWorthALook, 0.2,
         "Record more slots (a larger K), or the same filters on both sides. Above 70% the two "
         "sides speak of different tokens, and no K helps."},
    // A quarter is more than staleness and learning move it from one draw to the next.
    Rule{"SisAcceptRateCollapsing", Verdict::kWorthALook, 0.75,
         "What was changed then? A version, precision, temperature, or weights that were not "
         "loaded; else the last updates were too large."},
    // Engines that differ only in rounding accept 0.76 to 0.91 of the tokens, and policies that
    // have
    // drifted by 0.2 nats 0.61 to 0.79.
    Rule{"SisAcceptRateLow", Verdict::kWorthALook, 0.5,
         "Residual mass high: K or the filters. D high: engines that differ, or drift. Both low: "
         "evaluate with a smaller top_k."},
    // Log-normal weights whose logarithms spread by s nats leave exp(-s^2): 0.3 at 1.1 nats. Then
    // seven of ten tokens add cost but no information.
    Rule{"SisEffectiveSampleSizeLow", Verdict::kWorthALook, 0.3,
         "Fewer updates per rollout, or a correction that cuts large weights."},
    Rule{"SisDSisNearD", Verdict::kWorthALook, 0.9,
         "Nearly no token that deviates is accepted: look at residual mass and envelope."},
    // Eviction starts a little below the limit.
    Rule{"SisCacheNearLimit", Verdict::kWorthALook, 0.9,
         "Let trainers release what they have used, raise the quota or --cache_bytes, or take a "
         "store."},
};

// Below it, in nats per token, there is nothing that D_SIS could be near to.
inline constexpr double kLeastDeviation = 0.01;
// In nats per token; from here on fresh tokens have a fault of their own, whatever stale ones do
// (the check of staleness in sis/diagnose).
inline constexpr double kMostFreshDeviation = 0.15;
// Events that lie further back don't matter any more.
inline constexpr absl::Duration kWindow = absl::Minutes(15);

// The last draws are judged, at least this number of them and of tokens.
inline constexpr int kDrawsJudged = 4;
inline constexpr int kLeastTokens = 1000;
// A pause is too long from twice the longest one before it on, in these bounds; until reads and
// appends have taken turns so often that pauses are known, at the upper one.
inline constexpr absl::Duration kShortestPause = absl::Minutes(1);
inline constexpr int kTurnsKnown = 2;

}  // namespace sis
