#include "server/evaluate/evaluate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/numerics/sequence_key.h"
#include "server/evaluate/base_algorithm.h"

namespace sis {
namespace {

absl::Status RefuseMissing(const SliceRange& slice, const Missing& missing) {
  return absl::FailedPreconditionError(absl::StrCat(
      "ratios of missing positions need own_log_probs: ", ToString(slice.name), " position ",
      missing.first_position, " is missing (", std::string(Name(missing.reason)), ")"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EvaluateCall>> EvaluateCall::Start(
    std::shared_ptr<Run> run, const Backend& backend, const v1::EvaluateRequest& request,
    v1::EvaluateResponse& response, size_t lanes) {
  absl::StatusOr<std::vector<SliceRange>> slices = ParseEvaluateSlices(*run, request.slices());
  if (!slices.ok()) return slices.status();
  absl::StatusOr<EvaluateInput> input =
      ParseEvaluateInput(request, run->config(), TotalPositions(*slices));
  if (!input.ok()) return input.status();
  absl::Status kept = KeepSequences(*run, *slices, request.keep_seconds());
  if (!kept.ok()) return kept;
  return std::unique_ptr<EvaluateCall>(new EvaluateCall(std::move(run), backend, *std::move(input),
                                                        *std::move(slices), response, lanes));
}

EvaluateCall::EvaluateCall(std::shared_ptr<Run> run, const Backend& backend, EvaluateInput input,
                           std::vector<SliceRange> slices, v1::EvaluateResponse& response,
                           size_t lanes)
    : run_(std::move(run)),
      input_(std::move(input)),
      slices_(std::move(slices)),
      response_(response),
      output_(input_, TotalPositions(slices_), response_),
      results_(slices_.size()) {
  const VersionsNow versions(*run_);
  for (size_t i = 0; i < lanes; ++i) evaluators_.emplace_back(versions, backend, input_);
  MakeGroups();
}

void EvaluateCall::MakeGroups() {
  const size_t values = std::max<size_t>(1, input_.current.values_per_position());
  const size_t most = std::min(kGroupPositions, kGroupValues / values);
  size_t offset = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (groups_.empty() || groups_.back().positions + slices_[i].count > most) {
      groups_.push_back({.first = i, .end = i, .offset = offset});
    }
    groups_.back().end = i + 1;
    groups_.back().positions += slices_[i].count;
    offset += slices_[i].count;
  }
}

uint64_t EvaluateCall::values(size_t group) const {
  return uint64_t{groups_[group].positions} * input_.current.values_per_position();
}

absl::Status EvaluateCall::EvaluateGroup(size_t group, size_t lane) {
  size_t offset = groups_[group].offset;
  for (size_t i = groups_[group].first; i < groups_[group].end; ++i) {
    SliceRange& slice = slices_[i];
    const absl::StatusOr<RangeResult> result =
        evaluators_[lane].Evaluate(slice, slice.first_position, slice.count, offset,
                                   output_.positions().Part(offset, slice.count));
    if (!result.ok()) return result.status();
    if (!result->missing.empty() && input_.own_log_probs.empty() && input_.needs_every_ratio()) {
      return RefuseMissing(slice, result->missing.front());
    }
    results_[i] = {result->counted.sums, result->log_ratio_sum,
                   SumOfPolicyLogRatios(result->scored), result->missing};
    Add(i, *result, groups_[group].counted);
    offset += slice.count;
  }
  return absl::OkStatus();
}

absl::Status EvaluateCall::Finish() {
  if (input_.algorithm) {
    absl::Status status =
        AddAlgorithmOutputs(input_, run_->config().seed, slices_, output_.positions(), response_);
    if (!status.ok()) return status;
  }
  std::vector<RunCounters::ObservedName> names;
  for (const ObservedCorrection& observed : input_.observe) names.push_back(observed.name);
  if (absl::Status status = run_->counters().Observe(names); !status.ok()) return status;
  for (size_t i = 0; i < slices_.size(); ++i) {
    AddMissingRanges(i, results_[i].missing, *response_.mutable_missing());
    *response_.add_slice_totals() = ToTotals(results_[i].sums);
  }
  Evaluated all;
  for (const Group& group : groups_) all += group.counted;
  AddPrefixCurve(all, *response_.mutable_prefix_curve());
  output_.Finish();
  *response_.mutable_totals() = ToTotals(all.sums);
  if (!input_.observe.empty()) AddCorrections(all);
  response_.set_newly_counted(Count());
  Inspect();
  return absl::OkStatus();
}

void EvaluateCall::AddCorrections(const Evaluated& all) {
  auto& corrections = *response_.mutable_corrections();
  AddStandardCorrections(all.statistics, corrections);
  for (const ObservedCorrection& observed : input_.observe) {
    *corrections.Add() = ToMessage(observed.name.name, all.observed.at(observed.name.name));
  }
}

void EvaluateCall::Add(size_t i, const RangeResult& part, Evaluated& counted) const {
  counted += part.counted;
  for (size_t j = 0; j < part.prefix_sums.size(); ++j) {
    counted.prefix_curve[input_.parameters.prefix_curve[j]] +=
        {part.counted.sums.scored(), part.prefix_sums[j].residual_mass,
         part.prefix_sums[j].expected_acceptance};
  }
  for (size_t j = 0; j < input_.observe.size(); ++j) {
    const ObservedCorrection& observed = input_.observe[j];
    CorrectionSums& sums = counted.observed[observed.name.name];
    if (const auto* mask = std::get_if<SequenceMask>(&observed.correction); mask != nullptr) {
      const int64_t log_product = results_[i].log_ratio_sum;
      const CorrectionSums& plain = part.counted.statistics.plain;
      if (!mask->Keeps(log_product, results_[i].sums.scored())) {
        sums += ZeroEverywhere(plain);
      } else if (mask->weight == v1::ObservedCorrection::SEQUENCE_WEIGHT_PRODUCT) {
        sums += SumsOfProduct(part.scored, log_product);
      } else {
        sums +=
            mask->weight == v1::ObservedCorrection::SEQUENCE_WEIGHT_ONE ? part.observed[j] : plain;
      }
    } else if (const Gspo* gspo = ObservedGspo(observed.correction); gspo != nullptr) {
      sums += SumsOfGspo(*gspo, part.scored, results_[i].policy_log_ratio);
    } else {
      sums += part.observed[j];
    }
  }
}

absl::StatusOr<RangeResult> EvaluateCall::EvaluateAgain(size_t i, const StepLedger::Range& range,
                                                        size_t offset,
                                                        InspectedPositions* inspected) {
  // The first evaluation found the values valid. Records evicted since then count as missing.
  SliceRange slice = slices_[i];
  slice.expected_digest.reset();
  const uint32_t count = range.end - range.first;
  std::vector<Decision> scratch(count);
  return evaluators_.front().Evaluate(slice, range.first, count,
                                      offset + range.first - slice.first_position,
                                      {.view = {.decisions = scratch}}, inspected);
}

std::vector<StepLedger::Range> EvaluateCall::MaskedRanges(const SliceRange& slice,
                                                          size_t offset) const {
  std::vector<StepLedger::Range> ranges;
  for (uint32_t i = 0; !input_.mask.empty() && i < slice.count; ++i) {
    if (!input_.masked(offset + i)) continue;
    const uint32_t position = slice.first_position + i;
    if (ranges.empty() || ranges.back().end != position) ranges.push_back({position, position});
    ++ranges.back().end;
  }
  return ranges;
}

int64_t EvaluateCall::Count() {
  const uint64_t draw = input_.parameters.draw;
  Evaluated counted;
  int64_t unclaimed = 0;
  int64_t newly_masked = 0;
  size_t i = 0;
  size_t offset = 0;
  for (const Group& group : groups_) {
    struct Fresh {
      size_t slice;
      size_t offset;
      StepLedger::Range range;
    };
    std::vector<Fresh> fresh;
    size_t whole_slices = 0;
    const size_t first = i;
    for (; i < group.end; ++i) {
      const SliceRange& slice = slices_[i];
      const StepLedger::Range whole{slice.first_position, slice.first_position + slice.count};
      const std::vector<StepLedger::Range> masked = MaskedRanges(slice, offset);
      const uint64_t key = SequenceKey(run_->config().seed, slice.name.attempt, slice.name.id);
      const StepLedger::Claimed claimed = run_->steps().Claim(draw, key, whole, masked);
      unclaimed += claimed.uncounted;
      newly_masked += claimed.masked;
      uint32_t left = slice.count;
      for (const StepLedger::Range& range : masked) left -= range.end - range.first;
      for (const StepLedger::Range& range : claimed.fresh) {
        fresh.push_back({i, offset, range});
        left -= range.end - range.first;
      }
      whole_slices += left == 0;
      offset += slice.count;
    }
    if (whole_slices == group.end - first) {
      counted += group.counted;
      continue;
    }
    // Another call has counted the other positions.
    for (const Fresh& part : fresh) {
      const absl::StatusOr<RangeResult> again = EvaluateAgain(part.slice, part.range, part.offset);
      if (again.ok()) {
        Add(part.slice, *again, counted);
      } else {  // records that came since then don't fit the request
        unclaimed += part.range.end - part.range.first;
      }
    }
  }
  counted.sums.masked = newly_masked;
  // Wall-clock time, not run_->now(): it is displayed, also after a restart.
  run_->counters().AddUncounted(run_->steps().Add(draw, counted, absl::Now(), unclaimed));
  run_->counters().AddEvaluated(counted);
  return counted.sums.scored() + counted.sums.missing;
}

void EvaluateCall::Inspect() {
  Inspection& inspection = run_->inspection();
  size_t offset = 0;
  for (size_t i = 0; i < slices_.size(); offset += slices_[i++].count) {
    const SliceRange& slice = slices_[i];
    const uint64_t key = SequenceKey(run_->config().seed, slice.name.attempt, slice.name.id);
    if (!inspection.Chosen(key)) continue;
    const StepLedger::Range kept{slice.first_position,
                                 std::clamp(inspection.kept_positions(), slice.first_position,
                                            slice.first_position + slice.count)};
    Inspection::Sequence values{key, input_.parameters.draw, slice.first_position,
                                InspectedPositions(run_->config().top_k)};
    values.positions.Resize(kept.end - kept.first);
    // Records that came since then don't fit the request.
    if (!EvaluateAgain(i, kept, offset, &values.positions).ok()) values.positions.Resize(0);
    values.Cut(kept.first + static_cast<uint32_t>(values.positions.size()),
               slice.first_position + slice.count);
    if (slice.sequence() != nullptr) values.annotation = slice.sequence()->annotation();
    inspection.Record({slice.name.id, slice.name.attempt}, values);
  }
}

}  // namespace sis
