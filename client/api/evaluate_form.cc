#include "client/api/evaluate_form.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <variant>

namespace sis {
namespace {

constexpr int kGathered = v1::EvaluateRequest::kGatheredFieldNumber;
constexpr int kReduced = v1::EvaluateRequest::kReducedFieldNumber;

// A form's array with one element per position.
template <typename T>
PositionArray Column(int form, int field, std::span<const T> values) {
  return {form, field, std::as_bytes(values), sizeof(T)};
}

// One with several elements per position.
template <typename T>
PositionArray SlotRows(int form, int field, std::span<const T> values, size_t positions) {
  return {form, field, std::as_bytes(values),
          values.size() / std::max<size_t>(1, positions) * sizeof(T)};
}

// Those of a form with values at the recorded slots: of used ones alone, if there are counts.
template <typename T>
std::vector<PositionArray> AtSlots(std::span<const T> values, std::span<const uint16_t> counts,
                                   size_t positions) {
  using Form = v1::Gathered;
  if (counts.empty()) {
    return {SlotRows(kGathered, Form::kLogProbsFieldNumber, values, positions)};
  }
  std::vector<size_t> begins = {0};
  begins.reserve(counts.size() + 1);
  for (const uint16_t count : counts) begins.push_back(begins.back() + count * sizeof(T));
  return {{kGathered, Form::kLogProbsFieldNumber, std::as_bytes(values), 0, std::move(begins)},
          Column(kGathered, Form::kTopKCountsFieldNumber, counts)};
}

// Gathered values of any type, and those of the sampled tokens.
template <typename T>
std::vector<PositionArray> Gathered(v1::Gathered::Values type, std::span<const T> values,
                                    std::span<const float> sampled,
                                    std::span<const uint16_t> counts,
                                    v1::EvaluateRequest& request) {
  request.mutable_gathered()->set_values(type);
  std::vector<PositionArray> arrays = AtSlots(values, counts, sampled.size());
  arrays.push_back(Column(kGathered, v1::Gathered::kSampledLogProbsFieldNumber, sampled));
  return arrays;
}

std::vector<PositionArray> Write(const GatheredValues& current, v1::EvaluateRequest& request) {
  return Gathered(v1::Gathered::LOG_PROBS, current.log_probs, current.sampled_log_probs,
                  current.top_k_counts, request);
}

std::vector<PositionArray> Write(const GatheredHalves& current, v1::EvaluateRequest& request) {
  return Gathered(v1::Gathered::FLOAT16_LOG_PROBS, current.log_probs, current.sampled_log_probs,
                  current.top_k_counts, request);
}

std::vector<PositionArray> Write(const LogitValues& current, v1::EvaluateRequest& request) {
  std::vector<PositionArray> arrays = Gathered(
      v1::Gathered::LOGITS, current.logits, current.sampled_logits, current.top_k_counts, request);
  arrays.push_back(Column(kGathered, v1::Gathered::kLogSumExpsFieldNumber, current.log_sum_exps));
  return arrays;
}

std::vector<PositionArray> Write(const ReducedValues& current, v1::EvaluateRequest&) {
  return {Column(kReduced, v1::Reduced::kSampledLogProbsFieldNumber, current.sampled_log_probs),
          Column(kReduced, v1::Reduced::kLogEnvelopesFieldNumber, current.log_envelopes),
          Column(kReduced, v1::Reduced::kCoveredMassesFieldNumber, current.covered_masses)};
}

std::vector<PositionArray> Write(const TopKSetValues& current, v1::EvaluateRequest& request) {
  using Form = v1::TopK;
  const int form = v1::EvaluateRequest::kTopKSetFieldNumber;
  const size_t positions = current.sampled_log_probs.size();
  request.mutable_top_k_set()->set_top_k(
      static_cast<uint32_t>(current.ids.size() / std::max<size_t>(1, positions)));
  return {Column(form, Form::kSampledLogProbsFieldNumber, current.sampled_log_probs),
          SlotRows(form, Form::kIdsFieldNumber, current.ids, positions),
          SlotRows(form, Form::kLogProbsFieldNumber, current.log_probs, positions)};
}

std::vector<PositionArray> Write(const DenseValues& current, v1::EvaluateRequest& request) {
  using Form = v1::Dense;
  const int form = v1::EvaluateRequest::kDenseFieldNumber;
  size_t positions = 0;
  for (const v1::Slice& slice : request.slices()) positions += slice.length();
  const bool halves = !current.bfloat16_logits.empty();
  request.mutable_dense()->set_values(halves ? Form::BFLOAT16_LOGITS : Form::LOGITS);
  std::vector<PositionArray> arrays = {
      halves ? SlotRows(form, Form::kLogitsFieldNumber, current.bfloat16_logits, positions)
             : SlotRows(form, Form::kLogitsFieldNumber, current.logits, positions)};
  if (!current.sampled_ids.empty()) {
    arrays.push_back(Column(form, Form::kSampledIdsFieldNumber, current.sampled_ids));
  }
  return arrays;
}

}  // namespace

std::vector<PositionArray> WriteForm(const EvaluateForm& current, v1::EvaluateRequest& request) {
  return std::visit([&](const auto& values) { return Write(values, request); }, current);
}

}  // namespace sis
