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

std::vector<PositionArray> ArraysOf(const GatheredValues& current) {
  using Form = v1::Gathered;
  const std::span<const uint16_t> counts = current.top_k_counts;
  std::vector<PositionArray> arrays;
  if (counts.empty()) {
    arrays.push_back(SlotRows(kGathered, Form::kLogProbsFieldNumber, current.log_probs,
                              current.sampled_log_probs.size()));
  } else {
    std::vector<size_t> begins = {0};
    begins.reserve(counts.size() + 1);
    for (const uint16_t count : counts) begins.push_back(begins.back() + count * sizeof(float));
    arrays.push_back({kGathered, Form::kLogProbsFieldNumber, std::as_bytes(current.log_probs), 0,
                      std::move(begins)});
    arrays.push_back(Column(kGathered, Form::kTopKCountsFieldNumber, counts));
  }
  arrays.push_back(Column(kGathered, Form::kSampledLogProbsFieldNumber, current.sampled_log_probs));
  return arrays;
}

std::vector<PositionArray> ArraysOf(const ReducedValues& current) {
  return {Column(kReduced, v1::Reduced::kSampledLogProbsFieldNumber, current.sampled_log_probs),
          Column(kReduced, v1::Reduced::kLogEnvelopesFieldNumber, current.log_envelopes),
          Column(kReduced, v1::Reduced::kCoveredMassesFieldNumber, current.covered_masses)};
}

}  // namespace

std::vector<PositionArray> FormArrays(const EvaluateForm& current) {
  return std::visit([](const auto& values) { return ArraysOf(values); }, current);
}

}  // namespace sis
