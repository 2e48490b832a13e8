#include "server/cache/run_counters.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

// Returns true if the curve has the point, or room for another one.
template <typename Curve>
bool HasRoomFor(const Curve& curve, int top_k) {
  return curve.size() < RunTotals::kPrefixPointsCounted || curve.contains(top_k);
}

void Add(const Evaluated& evaluated, RunTotals& totals) {
  const Statistics& statistics = evaluated.statistics;
  totals.sums += evaluated.sums;
  totals.positive_log_envelope +=
      FromFixed(evaluated.sums.log_envelope + statistics.negative_log_envelope);
  totals.negative_log_envelope += FromFixed(statistics.negative_log_envelope);
  for (size_t i = 0; i < kAgeClasses.size(); ++i) totals.ages[i] += evaluated.ages[i];
  AddEach(evaluated.missing, totals.missing_by_reason);
  AddEach(statistics.abs_log_ratio, totals.abs_log_ratio_counts);
  AddEach(statistics.log_envelope, totals.log_envelope_counts);
  AddEach(statistics.residual_mass, totals.residual_mass_counts);
  AddEach(statistics.acceptance_probability, totals.acceptance_probability_counts);
  AddEach(statistics.ratios_beyond, totals.ratios_beyond);
  totals.corrections["plain"] += statistics.plain;
  totals.corrections["clipped"] += statistics.clipped;
  totals.corrections["applied"] += statistics.applied;
  for (const auto& [top_k, point] : evaluated.prefix_curve) {
    if (HasRoomFor(totals.prefix_curve, top_k)) totals.prefix_curve[top_k] += point;
  }
}

}  // namespace

void RunCounters::AddEvaluated(const Evaluated& evaluated) {
  Count([&](RunTotals& totals) { Add(evaluated, totals); });
  WriterLock lock(mutex_);
  for (const auto& [name, correction] : evaluated.observed) {
    totals_.corrections[name] += correction;
  }
}

absl::Status RunCounters::Observe(std::span<const ObservedName> names) {
  WriterLock lock(mutex_);
  size_t added = 0;
  for (const ObservedName& observed : names) {
    const auto found = observed_.find(observed.name);
    added += found == observed_.end();
    if (found != observed_.end() && found->second != observed.definition) {
      return absl::FailedPreconditionError(absl::StrCat(
          "observe: '", observed.name, "' is the name of another correction in this run"));
    }
  }
  if (observed_.size() + added > kMaxObserved) {
    return absl::ResourceExhaustedError(
        absl::StrCat("observe: ", added, " new names, but the run has ", observed_.size(),
                     " of at most ", kMaxObserved));
  }
  for (const ObservedName& observed : names) observed_[observed.name] = observed.definition;
  return absl::OkStatus();
}

}  // namespace sis
