#include "client/api/evaluate_options.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

absl::Status CheckSampledIds(const EvaluateOptions& options, const v1::EvaluateRequest& request) {
  size_t positions = 0;
  for (const v1::Slice& slice : request.slices()) positions += slice.length();
  if (options.sampled_ids.empty() || options.sampled_ids.size() == positions) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("sampled_ids: ", options.sampled_ids.size(), " elements, must be ", positions));
}

}  // namespace

bool EvaluateOptions::needs_one_request(std::span<const Slice> slices) const {
  if (!algorithm) return false;
  if (algorithm->has_clip_cov()) return true;
  if (!algorithm->has_gspo() || !log_ratio_sums.empty()) return false;
  std::set<std::pair<absl::string_view, uint32_t>> sequences;
  for (const Slice& slice : slices) sequences.emplace(slice.sequence.id, slice.sequence.attempt);
  return sequences.size() < slices.size();
}

SampledIdBytes PackSampledIds(const EvaluateOptions& options) {
  uint32_t bits = 0;
  for (size_t i = 0; i < options.sampled_ids.size(); ++i) {
    const bool masked = i < options.mask.size() && options.mask[i] == 0;
    if (!masked) bits |= static_cast<uint32_t>(options.sampled_ids[i]);
  }
  const size_t width = std::max<size_t>(2, (std::bit_width(bits) + 7) / 8);
  SampledIdBytes packed{.bytes = {}, .width = width};
  packed.bytes.reserve(options.sampled_ids.size() * width);
  for (const int32_t id : options.sampled_ids) {
    for (size_t byte = 0; byte < width; ++byte) {
      packed.bytes.push_back(static_cast<std::byte>(static_cast<uint32_t>(id) >> 8 * byte));
    }
  }
  return packed;
}

std::vector<PositionArray> OptionArrays(const EvaluateOptions& options,
                                        const SampledIdBytes& sampled_ids) {
  using Request = v1::EvaluateRequest;
  std::vector<PositionArray> arrays;
  const auto add = [&arrays](int message, int field, auto values) {
    if (!values.empty()) {
      arrays.push_back({message, field, std::as_bytes(values), sizeof(values.front())});
    }
  };
  add(0, Request::kMaskFieldNumber, options.mask);
  add(0, Request::kOwnLogProbsFieldNumber, options.own_log_probs);
  add(0, Request::kAdvantagesFieldNumber, options.advantages);
  add(Request::kDecoupledFieldNumber, v1::Decoupled::kCurrentLogProbsFieldNumber,
      options.decoupled_log_probs);
  if (!sampled_ids.bytes.empty()) {
    arrays.push_back({0, Request::kSampledIdsFieldNumber, sampled_ids.bytes, sampled_ids.width});
  }
  return arrays;
}

absl::Status WriteOptions(const EvaluateOptions& options, v1::EvaluateRequest& request) {
  request.set_draw(options.draw);
  request.set_top_k(options.top_k);
  request.set_lease_id(options.lease_id);
  request.mutable_outputs()->Add(options.outputs.begin(), options.outputs.end());
  request.mutable_prefix_curve()->Assign(options.prefix_curve.begin(), options.prefix_curve.end());
  request.set_total_variation(options.total_variation);
  request.set_weight(options.weight);
  if (options.algorithm) *request.mutable_algorithm() = *options.algorithm;
  request.mutable_observe()->Assign(options.observe.begin(), options.observe.end());
  if (!options.log_ratio_sums.empty()) {
    if (options.log_ratio_sums.size() != static_cast<size_t>(request.slices_size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("log_ratio_sums: ", options.log_ratio_sums.size(), " elements, must be ",
                       request.slices_size()));
    }
    for (int i = 0; i < request.slices_size(); ++i) {
      v1::LogRatioSum& sum = *request.mutable_slices(i)->mutable_sequence_log_ratio_sum();
      sum.set_log_ratio(options.log_ratio_sums[i].log_ratio);
      sum.set_positions(options.log_ratio_sums[i].positions);
    }
  }
  return CheckSampledIds(options, request);
}

}  // namespace sis
