#include "server/evaluate/evaluate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/sequence_key.h"
#include "server/evaluate/base_algorithm.h"
#include "server/inspect/inspection.h"

namespace sis {
namespace {

absl::Status RefuseMissing(const SliceRange& slice, const Missing& missing) {
  return absl::FailedPreconditionError(absl::StrCat(
      "ratios of missing positions need own_log_probs: ", ToString(slice.name), " position ",
      missing.first_position, " is missing (", std::string(Name(missing.reason)), ")"));
}

// Where the answers go, if not into the response.
absl::StatusOr<std::optional<AnswersInSegment>> ParseAnswers(const v1::EvaluateRequest& request,
                                                             const ReceivedArrays& arrays,
                                                             const WantedOutputs& wanted,
                                                             uint64_t positions) {
  if (!request.has_answers()) return std::nullopt;
  absl::StatusOr<AnswersInSegment> answers =
      AnswersInSegment::Parse(request.answers(), arrays, wanted.Sizes(positions));
  if (!answers.ok()) return answers.status();
  if (absl::Status status = answers->CheckDisjoint(request, arrays); !status.ok()) return status;
  return *std::move(answers);
}

}  // namespace

v1::Totals ToTotals(const Sums& sums) {
  v1::Totals totals;
  totals.set_accepted(sums.accepted);
  totals.set_rejected(sums.rejected);
  totals.set_outside_top_k(sums.outside_top_k);
  totals.set_missing(sums.missing);
  totals.set_masked(sums.masked);
  totals.set_envelope_violations(sums.envelope_violations);
  totals.set_d(FromFixed(sums.d));
  totals.set_d_sis(FromFixed(sums.d_sis));
  totals.set_log_envelope(FromFixed(sums.log_envelope));
  totals.set_residual_mass(FromFixed(sums.residual_mass));
  totals.set_acceptance_probability(FromFixed(sums.acceptance_probability));
  totals.set_expected_acceptance(FromFixed(sums.expected_acceptance));
  totals.set_k3(FromFixed(sums.k3));
  totals.set_total_variation(FromFixed(sums.total_variation));
  return totals;
}

absl::StatusOr<std::unique_ptr<EvaluateCall>> EvaluateCall::Start(
    std::shared_ptr<Run> run, const Backend& backend, const v1::EvaluateRequest& request,
    const ReceivedArrays& arrays) {
  if (absl::Status status = arrays.CheckRanges(request); !status.ok()) return status;
  absl::StatusOr<std::vector<SliceRange>> slices = ParseEvaluateSlices(*run, request.slices());
  if (!slices.ok()) return slices.status();
  absl::StatusOr<EvaluateInput> input =
      ParseEvaluateInput(request, arrays, run->config(), run->limits(), TotalPositions(*slices));
  if (!input.ok()) return input.status();
  absl::StatusOr<std::optional<AnswersInSegment>> answers =
      ParseAnswers(request, arrays, input->wanted, TotalPositions(*slices));
  if (!answers.ok()) return answers.status();
  if (request.lease_id() != 0) {
    if (absl::Status status = run->RenewLease(request.lease_id()); !status.ok()) return status;
  }
  return std::unique_ptr<EvaluateCall>(new EvaluateCall(std::move(run), backend, *std::move(input),
                                                        *std::move(slices), *std::move(answers)));
}

EvaluateCall::EvaluateCall(std::shared_ptr<Run> run, const Backend& backend, EvaluateInput input,
                           std::vector<SliceRange> slices, std::optional<AnswersInSegment> answers)
    : run_(std::move(run)),
      input_(std::move(input)),
      slices_(std::move(slices)),
      answers_(std::move(answers)),
      evaluator_(*run_, backend, input_),
      response_(std::make_shared<v1::EvaluateResponse>()),
      output_(input_, TotalPositions(slices_), *response_) {
  results_.reserve(slices_.size());
}

absl::StatusOr<uint64_t> EvaluateCall::EvaluateSlice() {
  const size_t index = results_.size();
  const SliceRange& slice = slices_[index];
  absl::StatusOr<RangeResult> result =
      evaluator_.Evaluate(slice, slice.first_position, slice.count, positions_evaluated_,
                          output_.positions().Part(positions_evaluated_, slice.count));
  if (!result.ok()) return result.status();
  if (!result->missing.empty() && input_.own_log_probs.empty() &&
      (input_.wanted.NeedEveryRatio() || input_.algorithm)) {
    return RefuseMissing(slice, result->missing.front());
  }
  AddMissingRanges(index, result->missing, *response_->mutable_missing());
  *response_->add_slice_totals() = ToTotals(result->sums);
  positions_evaluated_ += slice.count;
  results_.push_back(*std::move(result));
  return uint64_t{slice.count} * input_.current.values_per_position();
}

absl::StatusOr<std::shared_ptr<const v1::EvaluateResponse>> EvaluateCall::Finish() {
  if (input_.algorithm) {
    absl::Status status =
        AddAlgorithmOutputs(input_, run_->config().seed, slices_, output_.positions(), *response_);
    if (!status.ok()) return status;
  }
  output_.Finish();
  Sums sums;
  for (const RangeResult& result : results_) sums += result.sums;
  *response_->mutable_totals() = ToTotals(sums);
  response_->set_newly_counted(Count());
  if (answers_) answers_->Move(*response_);
  return response_;
}

int64_t EvaluateCall::Count() {
  const uint64_t draw = input_.parameters.draw;
  Sums counted;
  std::vector<Missing> missing;
  size_t offset = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const SliceRange& slice = slices_[i];
    const StepLedger::Range whole{slice.first_position, slice.first_position + slice.count};
    const uint64_t key = SequenceKey(run_->config().seed, slice.name.attempt, slice.name.id);
    for (const StepLedger::Range& fresh : run_->steps().Claim(draw, key, whole)) {
      RangeResult part;
      if (fresh == whole) {
        part = results_[i];
      } else {
        // Another rank counted the rest of the slice. What is evaluated again was valid a moment
        // ago; records that have gone since count as missing.
        const uint32_t count = fresh.end - fresh.first;
        std::vector<Decision> scratch(count);
        SliceRange range = slice;
        range.expected_digest.reset();
        range.sampled_ids_crc32c.reset();
        absl::StatusOr<RangeResult> again = evaluator_.Evaluate(
            range, fresh.first, count, offset + fresh.first - slice.first_position,
            {.view = {.decisions = scratch}});
        if (!again.ok()) continue;
        part = *std::move(again);
      }
      counted += part.sums;
      missing.insert(missing.end(), part.missing.begin(), part.missing.end());
    }
    if (run_->inspection().Chosen(key)) Inspect(slice, key, offset);
    offset += slice.count;
  }
  run_->steps().Add(draw, counted);
  run_->counters().AddEvaluated(counted, missing);
  return counted.scored() + counted.missing;
}

void EvaluateCall::Inspect(const SliceRange& slice, uint64_t sequence_key, size_t offset) {
  const uint32_t end =
      std::min(slice.first_position + slice.count, run_->inspection().kept_positions());
  if (slice.first_position >= end) return;
  const absl::StatusOr<InspectedPositions> positions =
      evaluator_.Inspect(slice, end - slice.first_position, offset);
  // What was valid a moment ago may have changed in a segment: then there is nothing to look at.
  if (!positions.ok()) return;
  run_->inspection().Record({slice.name.id, slice.name.attempt}, sequence_key,
                            input_.parameters.draw, slice.first_position, *positions);
}

}  // namespace sis
