#include "server/cache/run_counters.h"

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

// Whether a curve that has so many points takes this one.
template <typename Curve>
bool HasRoomFor(const Curve& curve, int top_k) {
  return curve.size() < RunTotals::kPrefixPointsCounted || curve.contains(top_k);
}

}  // namespace

CorrectionTotals& CorrectionTotals::operator+=(const CorrectionSums& sums) {
  positions += static_cast<double>(sums.positions);
  touched += static_cast<double>(sums.touched);
  zeroed += static_cast<double>(sums.zeroed);
  weight += FromCountedWeight(sums.weight);
  weight_squared += FromCountedWeight(sums.weight_squared);
  abs_log_weight += FromFixed(sums.abs_log_weight);
  gradient_mass += FromCountedWeight(sums.gradient_mass);
  return *this;
}

CorrectionTotals& CorrectionTotals::operator+=(const CorrectionTotals& other) {
  positions += other.positions;
  touched += other.touched;
  zeroed += other.zeroed;
  weight += other.weight;
  weight_squared += other.weight_squared;
  abs_log_weight += other.abs_log_weight;
  gradient_mass += other.gradient_mass;
  return *this;
}

PrefixTotals& PrefixTotals::operator+=(const PrefixPointSums& point) {
  positions += static_cast<double>(point.positions);
  residual_mass += FromFixed(point.sums.residual_mass);
  expected_acceptance += FromFixed(point.sums.expected_acceptance);
  return *this;
}

PrefixTotals& PrefixTotals::operator+=(const PrefixTotals& other) {
  positions += other.positions;
  residual_mass += other.residual_mass;
  expected_acceptance += other.expected_acceptance;
  return *this;
}

RunTotals& RunTotals::operator+=(const RunTotals& other) {
  accepted += other.accepted;
  rejected += other.rejected;
  outside_top_k += other.outside_top_k;
  missing += other.missing;
  envelope_violations += other.envelope_violations;
  d += other.d;
  d_sis += other.d_sis;
  positive_log_envelope += other.positive_log_envelope;
  negative_log_envelope += other.negative_log_envelope;
  residual_mass += other.residual_mass;
  acceptance_probability += other.acceptance_probability;
  expected_acceptance += other.expected_acceptance;
  k3 += other.k3;
  total_variation += other.total_variation;
  for (size_t i = 0; i < staleness.size(); ++i) staleness[i] += other.staleness[i];
  AddEach(other.abs_log_ratio_counts, abs_log_ratio_counts);
  AddEach(other.log_envelope_counts, log_envelope_counts);
  AddEach(other.residual_mass_counts, residual_mass_counts);
  AddEach(other.acceptance_probability_counts, acceptance_probability_counts);
  AddEach(other.ratios_beyond, ratios_beyond);
  for (const auto& [name, totals] : other.corrections) {
    if (corrections.contains(name)) corrections[name] += totals;
  }
  for (const auto& [top_k, totals] : other.prefix_curve) {
    if (HasRoomFor(prefix_curve, top_k)) prefix_curve[top_k] += totals;
  }
  ingested_positions += other.ingested_positions;
  ingested_bytes += other.ingested_bytes;
  AddEach(other.missing_by_reason, missing_by_reason);
  for (size_t i = 0; i < dropped_by_reason.size(); ++i) {
    dropped_by_reason[i] += other.dropped_by_reason[i];
  }
  evicted_unread += other.evicted_unread;
  for (size_t i = 0; i < refused_entries_by_code.size(); ++i) {
    refused_entries_by_code[i] += other.refused_entries_by_code[i];
  }
  return *this;
}

void RunCounters::AddEvaluated(const Evaluated& evaluated) {
  const Sums& sums = evaluated.sums;
  const Statistics& statistics = evaluated.statistics;
  WriterLock lock(mutex_);
  totals_.accepted += static_cast<double>(sums.accepted);
  totals_.rejected += static_cast<double>(sums.rejected);
  totals_.outside_top_k += static_cast<double>(sums.outside_top_k);
  totals_.missing += static_cast<double>(sums.missing);
  totals_.envelope_violations += static_cast<double>(sums.envelope_violations);
  totals_.d += FromFixed(sums.d);
  totals_.d_sis += FromFixed(sums.d_sis);
  totals_.positive_log_envelope += FromFixed(sums.log_envelope + statistics.negative_log_envelope);
  totals_.negative_log_envelope += FromFixed(statistics.negative_log_envelope);
  totals_.residual_mass += FromFixed(sums.residual_mass);
  totals_.acceptance_probability += FromFixed(sums.acceptance_probability);
  totals_.expected_acceptance += FromFixed(sums.expected_acceptance);
  totals_.k3 += FromFixed(sums.k3);
  totals_.total_variation += FromFixed(sums.total_variation);
  for (size_t i = 0; i < evaluated.staleness.size(); ++i) {
    totals_.staleness[i] += evaluated.staleness[i];
  }
  AddEach(evaluated.missing, totals_.missing_by_reason);
  AddEach(statistics.abs_log_ratio, totals_.abs_log_ratio_counts);
  AddEach(statistics.log_envelope, totals_.log_envelope_counts);
  AddEach(statistics.residual_mass, totals_.residual_mass_counts);
  AddEach(statistics.acceptance_probability, totals_.acceptance_probability_counts);
  AddEach(statistics.ratios_beyond, totals_.ratios_beyond);
  totals_.corrections["plain"] += statistics.plain;
  totals_.corrections["clipped"] += statistics.clipped;
  totals_.corrections["applied"] += statistics.applied;
  for (const auto& [name, correction] : evaluated.observed) {
    totals_.corrections[name] += correction;
  }
  for (const auto& [top_k, point] : evaluated.prefix_curve) {
    if (HasRoomFor(totals_.prefix_curve, top_k)) totals_.prefix_curve[top_k] += point;
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
