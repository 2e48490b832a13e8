#include "client/api/evaluate_options.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"

namespace sis {
namespace {

absl::Status WriteChecksums(const EvaluateOptions& options, v1::EvaluateRequest& request) {
  size_t positions = 0;
  for (const v1::Slice& slice : request.slices()) positions += slice.length();
  const auto check = [positions](absl::string_view field, size_t length) {
    if (length == positions) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", length, " elements, must be ", positions));
  };
  absl::Status status = check("sampled_ids", options.sampled_ids.size());
  if (!options.mask.empty()) status.Update(check("mask", options.mask.size()));
  if (!status.ok()) return status;
  size_t i = 0;
  for (v1::Slice& slice : *request.mutable_slices()) {
    uint32_t crc = 0;
    for (const size_t end = i + slice.length(); i < end; ++i) {
      if (!options.mask.empty() && options.mask[i] == 0) continue;
      crc = ExtendCrc32c(crc, std::as_bytes(options.sampled_ids.subspan(i, 1)));
    }
    slice.set_sampled_ids_crc32c(crc);
  }
  return absl::OkStatus();
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

std::vector<PositionArray> OptionArrays(const EvaluateOptions& options) {
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
  return options.sampled_ids.empty() ? absl::OkStatus() : WriteChecksums(options, request);
}

}  // namespace sis
