#include "server/evaluate/evaluate.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/sequence_key.h"
#include "server/evaluate/accept_bits.h"
#include "server/evaluate/base_algorithm.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/slice_evaluator.h"
#include "server/messages/cache_messages.h"
#include "server/slices/slices.h"
#include "server/wire/answers_in_segment.h"
#include "server/wire/arrays.h"

namespace sis {
namespace {

absl::Status RefuseMissing(const SliceRange& slice, const Missing& missing) {
  return absl::FailedPreconditionError(absl::StrCat(
      "ratios of missing positions need own_log_probs: ", ToString(slice.name), " position ",
      missing.first_position, " is missing (", std::string(Name(missing.reason)), ")"));
}

void AddPrefixCurve(std::span<const int> curve, std::span<const PrefixSums> sums,
                    v1::EvaluateResponse& response) {
  for (size_t i = 0; i < curve.size(); ++i) {
    v1::PrefixPoint& point = *response.add_prefix_curve();
    point.set_top_k(static_cast<uint32_t>(curve[i]));
    point.set_residual_mass(FromFixed(sums[i].residual_mass));
    point.set_expected_acceptance(FromFixed(sums[i].expected_acceptance));
  }
}

// The arrays of a response to N positions, in the order of their fields.
std::vector<uint64_t> AnswerSizes(const WantedOutputs& wanted, uint64_t count) {
  std::vector<uint64_t> sizes;
  if (wanted.accept_bits) sizes.push_back((count + 7) / 8);
  if (wanted.decisions) sizes.push_back(count);
  for (const bool floats : {wanted.ratios, wanted.log_ratios, wanted.acceptance_probabilities,
                            wanted.surrogates, wanted.coefficients}) {
    if (floats) sizes.push_back(count * sizeof(float));
  }
  return sizes;
}

// Where the answers go, if not into the response.
absl::StatusOr<std::optional<AnswersInSegment>> ParseAnswers(const v1::EvaluateRequest& request,
                                                             const ReceivedArrays& arrays,
                                                             const WantedOutputs& wanted,
                                                             uint64_t count) {
  if (!request.has_answers()) return std::nullopt;
  absl::StatusOr<AnswersInSegment> answers =
      AnswersInSegment::Parse(request.answers(), arrays, AnswerSizes(wanted, count));
  if (!answers.ok()) return answers.status();
  if (absl::Status status = answers->CheckDisjoint(request, arrays); !status.ok()) return status;
  return *std::move(answers);
}

// The arrays of a call: those that are wanted lie in the response, the others that an algorithm
// needs in here.
class CallOutput {
 public:
  CallOutput(const EvaluateInput& input, size_t count, v1::EvaluateResponse& response) {
    const WantedOutputs& wanted = input.wanted;
    OutputView& view = output_.view;
    view.decisions = ResizeArray<Decision>(*response.mutable_decisions(), count);
    if (wanted.ratios) {
      view.modified_ratios = ResizeArray<float>(*response.mutable_ratios(), count);
    }
    if (wanted.log_ratios) {
      view.log_modified_ratios = ResizeArray<float>(*response.mutable_log_ratios(), count);
    }
    if (wanted.acceptance_probabilities) {
      view.acceptance_probabilities =
          ResizeArray<float>(*response.mutable_acceptance_probabilities(), count);
    }
    prefix_sums_.resize(input.parameters.prefix_curve.size());
    output_.prefix_sums = prefix_sums_;
    if (!input.algorithm) return;
    if (!wanted.log_ratios) view.log_modified_ratios = Scratch(log_ratios_, count);
    output_.reference_log_probs = Scratch(reference_log_probs_, count);
    sampled_log_probs_ = input.sampled_log_probs;
    if (input.current.dense() != nullptr) {
      output_.sampled_log_probs = Scratch(computed_log_probs_, count);
      sampled_log_probs_ = output_.sampled_log_probs;
    }
    if (std::holds_alternative<DppoTopK>(*input.algorithm)) {
      output_.total_variations = Scratch(total_variations_, count);
    }
  }

  const SliceOutput& output() const { return output_; }
  EvaluatedPositions positions() const {
    return {.decisions = output_.view.decisions,
            .log_modified_ratios = output_.view.log_modified_ratios,
            .sampled_log_probs = sampled_log_probs_,
            .reference_log_probs = output_.reference_log_probs,
            .total_variations = output_.total_variations};
  }

 private:
  static std::span<float> Scratch(std::vector<float>& array, size_t count) {
    array.resize(count);
    return array;
  }

  SliceOutput output_;
  std::vector<PrefixSums> prefix_sums_;
  std::vector<float> log_ratios_;
  std::vector<float> reference_log_probs_;
  std::vector<float> computed_log_probs_;
  std::span<const float> sampled_log_probs_;
  std::vector<float> total_variations_;
};

// Adds to the run's step and metrics what this draw hasn't counted yet; returns how many positions
// that is.
int64_t Count(Run& run, SliceEvaluator& evaluator, const EvaluateInput& input,
              const std::vector<SliceRange>& slices, const std::vector<RangeResult>& results) {
  const uint64_t draw = input.parameters.draw;
  Sums counted;
  std::vector<Missing> missing;
  size_t offset = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const SliceRange& slice = slices[i];
    const StepLedger::Range whole{slice.first_position, slice.first_position + slice.count};
    const uint64_t key = SequenceKey(run.config().seed, slice.name.attempt, slice.name.id);
    for (const StepLedger::Range& fresh : run.steps().Claim(draw, key, whole)) {
      RangeResult part;
      if (fresh == whole) {
        part = results[i];
      } else {
        // Another rank counted the rest of the slice. Valid a moment ago, so valid now, but for
        // records that have gone since: those count as missing.
        const uint32_t count = fresh.end - fresh.first;
        std::vector<Decision> scratch(count);
        SliceRange range = slice;
        range.expected_digest.reset();
        range.sampled_ids_crc32c.reset();
        absl::StatusOr<RangeResult> again = evaluator.Evaluate(
            range, fresh.first, count, offset + fresh.first - slice.first_position,
            {.view = {.decisions = scratch}});
        if (!again.ok()) continue;
        part = *std::move(again);
      }
      counted += part.sums;
      missing.insert(missing.end(), part.missing.begin(), part.missing.end());
    }
    offset += slice.count;
  }
  run.steps().Add(draw, counted);
  run.counters().AddEvaluated(counted, missing);
  return counted.scored() + counted.missing;
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

class EvaluateCall::State {
 public:
  State(Run& run, const Backend& backend, EvaluateInput input, std::vector<SliceRange> slices,
        std::optional<AnswersInSegment> answers)
      : run_(run),
        input_(std::move(input)),
        slices_(std::move(slices)),
        answers_(std::move(answers)),
        evaluator_(run, backend, input_),
        response_(std::make_shared<v1::EvaluateResponse>()),
        call_(input_, TotalPositions(slices_), *response_) {
    results_.reserve(slices_.size());
  }

  size_t values_per_position() const { return input_.current.values_per_position(); }
  bool done() const { return results_.size() == slices_.size(); }

  absl::Status EvaluateSlice() {
    const size_t index = results_.size();
    const SliceRange& slice = slices_[index];
    absl::StatusOr<RangeResult> result =
        evaluator_.Evaluate(slice, slice.first_position, slice.count, offset_,
                            call_.output().Part(offset_, slice.count));
    if (!result.ok()) return result.status();
    if (!result->missing.empty() && input_.own_log_probs.empty() &&
        (input_.wanted.need_every_ratio() || input_.algorithm)) {
      return RefuseMissing(slice, result->missing.front());
    }
    for (const Missing& range : result->missing) {
      v1::MissingRange& message = *response_->add_missing();
      message.set_slice(static_cast<uint32_t>(index));
      message.set_first_position(range.first_position);
      message.set_length(range.count);
      message.set_reason(ToMessage(range.reason));
    }
    *response_->add_slice_totals() = ToTotals(result->sums);
    sums_ += result->sums;
    offset_ += slice.count;
    results_.push_back(*std::move(result));
    if (!done() || !input_.algorithm) return absl::OkStatus();
    return AddAlgorithmOutputs(input_, run_.config().seed, slices_, call_.positions(), *response_);
  }

  std::shared_ptr<const v1::EvaluateResponse> Finish() {
    *response_->mutable_totals() = ToTotals(sums_);
    AddPrefixCurve(input_.parameters.prefix_curve, call_.output().prefix_sums, *response_);
    if (input_.wanted.accept_bits) {
      response_->set_accept_bits(PackAcceptBits(call_.output().view.decisions));
    }
    if (!input_.wanted.decisions) response_->clear_decisions();
    response_->set_newly_counted(Count(run_, evaluator_, input_, slices_, results_));
    if (answers_) answers_->Move(*response_);
    return response_;
  }

 private:
  Run& run_;
  const EvaluateInput input_;
  const std::vector<SliceRange> slices_;
  const std::optional<AnswersInSegment> answers_;
  SliceEvaluator evaluator_;
  const std::shared_ptr<v1::EvaluateResponse> response_;
  const CallOutput call_;  // into the response
  // Of the slices evaluated so far; `offset_` is how many positions they have.
  std::vector<RangeResult> results_;
  size_t offset_ = 0;
  Sums sums_;
};

EvaluateCall::EvaluateCall(std::unique_ptr<State> state) : state_(std::move(state)) {}
EvaluateCall::EvaluateCall(EvaluateCall&&) noexcept = default;
EvaluateCall::~EvaluateCall() = default;

absl::StatusOr<EvaluateCall> EvaluateCall::Start(Run& run, const Backend& backend,
                                                 const v1::EvaluateRequest& request,
                                                 const ReceivedArrays& arrays) {
  if (absl::Status status = arrays.CheckRanges(request); !status.ok()) return status;
  absl::StatusOr<std::vector<SliceRange>> slices = ParseEvaluateSlices(run, request.slices());
  if (!slices.ok()) return slices.status();
  absl::StatusOr<EvaluateInput> input =
      ParseEvaluateInput(request, arrays, run.config(), run.limits(), TotalPositions(*slices));
  if (!input.ok()) return input.status();
  absl::StatusOr<std::optional<AnswersInSegment>> answers =
      ParseAnswers(request, arrays, input->wanted, TotalPositions(*slices));
  if (!answers.ok()) return answers.status();
  if (request.lease_id() != 0) {
    if (absl::Status status = run.RenewLease(request.lease_id()); !status.ok()) return status;
  }
  return EvaluateCall(std::make_unique<State>(run, backend, *std::move(input), *std::move(slices),
                                              *std::move(answers)));
}

size_t EvaluateCall::values_per_position() const { return state_->values_per_position(); }

bool EvaluateCall::done() const { return state_->done(); }

absl::Status EvaluateCall::EvaluateSlice() { return state_->EvaluateSlice(); }

std::shared_ptr<const v1::EvaluateResponse> EvaluateCall::Finish() { return state_->Finish(); }

absl::StatusOr<v1::EvaluateResponse> Evaluate(Run& run, const Backend& backend,
                                              const v1::EvaluateRequest& request) {
  const ReceivedArrays in_fields;
  absl::StatusOr<EvaluateCall> evaluation = EvaluateCall::Start(run, backend, request, in_fields);
  if (!evaluation.ok()) return evaluation.status();
  while (!evaluation->done()) {
    if (absl::Status status = evaluation->EvaluateSlice(); !status.ok()) return status;
  }
  return *evaluation->Finish();
}

}  // namespace sis
