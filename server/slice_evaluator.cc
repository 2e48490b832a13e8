#include "server/slice_evaluator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/algorithms/expected_weight.h"
#include "kernels/algorithms/top_k_total_variation.h"
#include "kernels/validate.h"
#include "server/record_checks.h"

namespace sis {
namespace {

OutputView Part(const OutputView& view, size_t first, size_t count) {
  const auto part = [&](auto array) { return array.empty() ? array : array.subspan(first, count); };
  return {.decisions = part(view.decisions),
          .acceptance_probabilities = part(view.acceptance_probabilities),
          .log_modified_ratios = part(view.log_modified_ratios),
          .modified_ratios = part(view.modified_ratios)};
}

// Calls visit(masked, first, count) for the runs of equal mask that cover [first, first + count) of
// the input.
template <typename Visit>
absl::Status ForEachMaskRun(const EvaluateInput& input, size_t first, size_t count,
                            const Visit& visit) {
  const size_t end = first + count;
  while (first < end) {
    const bool masked = input.masked(first);
    size_t next = first + 1;
    if (input.mask.empty()) next = end;
    while (next < end && input.masked(next) == masked) ++next;
    if (absl::Status status = visit(masked, first, next - first); !status.ok()) return status;
    first = next;
  }
  return absl::OkStatus();
}

void AddMasked(const SliceOutput& output, size_t first, size_t count, Sums& sums) {
  const SliceOutput part = output.Part(first, count);
  std::ranges::fill(part.view.decisions, Decision::kMasked);
  std::ranges::fill(part.view.acceptance_probabilities, 0.0f);
  std::ranges::fill(part.view.log_modified_ratios, 0.0f);
  std::ranges::fill(part.view.modified_ratios, 1.0f);
  sums.masked += static_cast<int64_t>(count);
}

absl::Status NotALogProb(absl::string_view field, uint32_t position, float value) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": position ", position, ": ", value, " is not a log-prob"));
}

// The trainer's own ratio, where there is no record.
absl::Status AddOwnRatios(const EvaluateInput& input, const SliceOutput& output,
                          uint32_t first_position) {
  for (size_t i = 0; i < input.own_log_probs.size(); ++i) {
    const auto position = static_cast<uint32_t>(first_position + i);
    const float own = input.own_log_probs[i];
    if (!std::isfinite(own) || own > kRoundingSlack) {
      return NotALogProb("own_log_probs", position, own);
    }
    const float current = input.current.sampled_log_probs[i];
    if (!(current <= kRoundingSlack)) return NotALogProb("sampled_log_probs", position, current);
    const float log_ratio = Flush(current - own);
    if (!output.view.log_modified_ratios.empty()) output.view.log_modified_ratios[i] = log_ratio;
    if (!output.view.modified_ratios.empty()) output.view.modified_ratios[i] = Exp32(log_ratio);
    if (!output.reference_log_probs.empty()) output.reference_log_probs[i] = own;
    if (!output.total_variations.empty()) {
      const Token token{.current_log_prob = current, .reference_log_prob = own};
      output.total_variations[i] = DppoBinary::TotalVariation(token);
    }
  }
  return absl::OkStatus();
}

}  // namespace

SliceOutput SliceOutput::Part(size_t first, size_t count) const {
  const auto part = [&](auto array) { return array.empty() ? array : array.subspan(first, count); };
  return {.view = sis::Part(view, first, count),
          .reference_log_probs = part(reference_log_probs),
          .total_variations = part(total_variations),
          .prefix_sums = prefix_sums};
}

absl::StatusOr<RangeResult> SliceEvaluator::Evaluate(const SliceRange& slice, uint32_t first,
                                                     uint32_t count, const EvaluateInput& input,
                                                     const SliceOutput& output) {
  RangeResult result;
  const Range range{slice, first, input, output, result};
  segments_.clear();
  if (slice.sequence() == nullptr) {
    absl::Status status =
        AddMissingPositions(range, first, count, std::get<v1::MissingReason>(slice.found));
    if (!status.ok()) return status;
    return result;
  }

  // One sequence is locked at a time: two could wait for each other.
  const Sequence::Reader reader(*slice.sequence());
  absl::Status status = CheckRecordDigest(slice, reader);
  if (!status.ok()) return status;
  reader.ForEachPiece(first, count, [&](const Sequence::Reader::Piece& piece) {
    status.Update(AddPiece(range, piece));
  });
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(ToString(slice.name), ": ", status.message()));
  }
  if (result.missing.empty()) {
    status = CheckSampledIds(slice, reader, input);
    if (!status.ok()) return status;
  }
  Decide(range);
  return result;
}

absl::Status SliceEvaluator::AddMissingPositions(const Range& range, uint32_t position,
                                                 uint32_t count, v1::MissingReason reason) const {
  return ForEachMaskRun(
      range.input, position - range.first, count, [&](bool masked, size_t offset, size_t length) {
        if (masked) {
          AddMasked(range.output, offset, length, range.result.sums);
          return absl::OkStatus();
        }
        const auto first = static_cast<uint32_t>(range.first + offset);
        const SliceOutput output = range.output.Part(offset, length);
        std::ranges::fill(output.view.decisions, Decision::kMissing);
        std::ranges::fill(output.view.acceptance_probabilities, 0.0f);
        range.result.sums.missing += static_cast<int64_t>(length);
        AddMissing(range.result.missing, {first, static_cast<uint32_t>(length), reason});
        return AddOwnRatios(range.input.Part(offset, length), output, first);
      });
}

absl::Status SliceEvaluator::AddPiece(const Range& range, const Sequence::Reader::Piece& piece) {
  if (piece.page == nullptr) {
    return AddMissingPositions(range, piece.first_position, piece.count, v1::NEVER_ARRIVED);
  }
  if (piece.page->corrupt()) {
    return AddMissingPositions(range, piece.first_position, piece.count, v1::CORRUPT);
  }
  if (piece.version < oldest_fresh_version_) {
    return AddMissingPositions(range, piece.first_position, piece.count, v1::STALE);
  }
  return ForEachMaskRun(
      range.input, piece.first_position - range.first, piece.count,
      [&](bool masked, size_t offset, size_t length) {
        if (masked) {
          AddMasked(range.output, offset, length, range.result.sums);
          return absl::OkStatus();
        }
        const auto first = static_cast<uint32_t>(range.first + offset);
        const uint32_t index = piece.index + (first - piece.first_position);
        segments_.push_back({.sequence_key = range.slice.sequence()->key(),
                             .first_position = first,
                             .behavior = piece.page->Behavior(index, static_cast<uint32_t>(length)),
                             .current = range.input.CurrentPart(offset, length),
                             .output = range.output.Part(offset, length).view,
                             .sums = &range.result.sums,
                             .prefix_sums = range.output.prefix_sums});
        const Segment& segment = segments_.back();
        return ValidateCurrent(segment.behavior, segment.current, range.input.parameters.slots,
                               segment.first_position);
      });
}

void SliceEvaluator::Decide(const Range& range) {
  const EvaluateInput& input = range.input;
  const bool expected = input.weight == WeightKind::kExpected;
  if (expected && range.output.view.acceptance_probabilities.empty()) {
    acceptance_probabilities_.resize(range.output.view.decisions.size());
    for (Segment& segment : segments_) {
      segment.output.acceptance_probabilities =
          std::span(acceptance_probabilities_)
              .subspan(segment.first_position - range.first, segment.output.decisions.size());
    }
  }
  if (input.authors_code) {
    EvaluateAuthorsCode(*input.authors_code, input.parameters, segments_);
  } else {
    backend_.Evaluate(input.parameters, segments_);
  }
  if (expected) {
    range.result.sums.d_sis = 0;
    for (const Segment& segment : segments_) {
      range.result.sums.d_sis += ReplaceByExpectedWeights(segment);
    }
  }
  for (const Segment& segment : segments_) {
    const SliceOutput output =
        range.output.Part(segment.first_position - range.first, segment.output.decisions.size());
    if (!output.reference_log_probs.empty()) {
      std::ranges::copy(segment.behavior.sampled_log_probs, output.reference_log_probs.begin());
    }
    if (!output.total_variations.empty()) {
      ComputeTopKTotalVariations(input.parameters, segment, output.total_variations);
    }
  }
}

}  // namespace sis
