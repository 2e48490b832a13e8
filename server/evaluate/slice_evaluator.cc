#include "server/evaluate/slice_evaluator.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/decide/algorithms/expected_weight.h"
#include "kernels/decide/algorithms/top_k_total_variation.h"
#include "kernels/decide/validate_current.h"

namespace sis {
namespace {

void AddMasked(const PositionOutput& output, size_t count, Sums& sums) {
  std::ranges::fill(output.view.decisions, Decision::kMasked);
  std::ranges::fill(output.view.acceptance_probabilities, 0.0f);
  std::ranges::fill(output.view.log_modified_ratios, 0.0f);
  std::ranges::fill(output.view.modified_ratios, 1.0f);
  sums.masked += static_cast<int64_t>(count);
}

// In nats. A lower log-prob of the trainer is an engine's sentinel for -inf, such as -9999.
constexpr float kLowestOwnLogProb = -1000.0f;

absl::Status NotALogProb(absl::string_view field, uint32_t position, float value) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": position ", position, ": ", value, " is not a log-prob"));
}

// Returns FailedPrecondition if a sampled id in the request differs from the recorded one at an
// unmasked position of [first, first + count). These positions begin at `offset` in the request.
absl::Status CheckSampledIds(const SliceRange& slice, const Sequence::Reader& reader,
                             const EvaluateInput& input, uint32_t first, uint32_t count,
                             size_t offset) {
  if (input.sampled_ids.bytes.empty()) return absl::OkStatus();
  absl::Status status;
  reader.ForEachPiece(first, count, [&](const Sequence::Reader::Piece& piece) {
    if (!status.ok() || piece.block == nullptr || piece.block->corrupt()) return;
    const BlockView block = piece.block->view();
    const size_t width = block.header.id_bytes;
    const size_t begin = offset + (piece.first_position - first);
    if (width == input.sampled_ids.width &&
        std::memcmp(block.sampled_ids + piece.index * width,
                    input.sampled_ids.bytes.data() + begin * width, piece.count * width) == 0) {
      return;
    }
    for (uint32_t i = 0; i < piece.count; ++i) {
      const size_t row = begin + i;
      const auto recorded =
          static_cast<uint32_t>(BlockId(block.sampled_ids, piece.index + i, width));
      if (input.masked(row) || input.sampled_ids.At(row) == recorded) continue;
      status = absl::FailedPreconditionError(
          absl::StrCat("sampled_ids: ", input.sampled_ids.At(row), " at position ",
                       piece.first_position + i, " of ", ToString(slice.name), ", but ", recorded,
                       " is recorded there: is the batch shifted or permuted?"));
      return;
    }
  });
  return status;
}

}  // namespace

absl::StatusOr<RangeResult> SliceEvaluator::Evaluate(SliceRange& slice, uint32_t first,
                                                     uint32_t count, size_t offset,
                                                     const PositionOutput& output,
                                                     InspectedPositions* inspected) {
  RangeResult result = NoneYet();
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(ToString(slice.name), ": ", status.message()));
  };
  if (slice.sequence() == nullptr) {
    ForgetRanges();
    const Part part{slice, first, offset, output, result};
    absl::Status status =
        AddMissingPositions(part, first, count, std::get<MissingReason>(slice.found));
    if (!status.ok()) return named(status);
    if (inspected != nullptr) Keep(part, first, *inspected);
    return result;
  }

  // Only one sequence is locked at a time, so that no two threads wait for each other's.
  const Sequence::Reader reader(*slice.sequence());
  absl::Status status = CompareWithFetched(slice, reader);
  if (status.ok()) status = CheckSampledIds(slice, reader, input_, first, count, offset);
  if (!status.ok()) return status;
  if (inspected != nullptr) KeepRecords(slice, reader, first, *inspected);
  // Evaluates parts that fit in a core's cache with all that is read and written.
  const size_t step =
      std::max<size_t>(1, backend_.values_per_call() / input_.current.values_per_position());
  const uint32_t end = first + count;
  for (uint32_t from = first; from < end;) {
    const auto length = static_cast<uint32_t>(std::min<size_t>(end - from, step));
    const Part part{slice, from, offset + (from - first),
                    statistics_.Complete(output.Part(from - first, length), length), result};
    ForgetRanges();
    reader.ForEachPiece(from, length, [&](const Sequence::Reader::Piece& piece) {
      status.Update(AddPiece(part, piece));
    });
    if (status.ok()) status = Decide(part);
    if (status.ok()) status = AddStatistics(part);
    if (!status.ok()) return named(status);
    if (inspected != nullptr) Keep(part, first, *inspected);
    from += length;
  }
  return result;
}

absl::Status SliceEvaluator::CompareWithFetched(SliceRange& slice,
                                                const Sequence::Reader& reader) const {
  if (!slice.expected_digest.has_value()) return absl::OkStatus();
  const uint64_t expected = *slice.expected_digest;
  const uint32_t first = slice.first_position, count = slice.count;
  const uint64_t digest = reader.Digest(first, count, versions_.oldest_fresh);
  if (digest == expected) return absl::OkStatus();
  // The digest 0 means that no record was fetched, so none can have been evicted since.
  const std::optional<uint64_t> oldest =
      expected == 0 ? std::nullopt : reader.OldestFetched(expected, first, count);
  if (oldest.has_value() && *oldest <= versions_.oldest_fresh) {
    slice.oldest_fetched_version = *oldest;
    return absl::OkStatus();
  }
  if (reader.AnyCorrupt(first, count)) {
    slice.unreadable = true;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("record_digest ", expected, ", but the records of ", ToString(slice.name),
                   " positions [", first, ", ", first + count, ") have ", digest));
}

std::optional<MissingReason> SliceEvaluator::ReasonMissing(
    const SliceRange& slice, const Sequence::Reader::Piece& piece) const {
  if (slice.unreadable) return MissingReason::kCorrupt;
  return sis::ReasonMissing(piece, std::max(versions_.oldest_fresh, slice.oldest_fetched_version));
}

RangeResult SliceEvaluator::NoneYet() const {
  RangeResult result;
  result.prefix_sums.resize(input_.parameters.prefix_curve.size());
  result.observed.resize(input_.observe.size());
  return result;
}

void SliceEvaluator::ForgetRanges() {
  ranges_.clear();
  ages_.clear();
  decided_ = {};
  decided_by_age_ = {};
}

template <typename Visit>
absl::Status SliceEvaluator::ForEachMaskRange(const Part& part, uint32_t position, uint32_t count,
                                              const Visit& visit) const {
  size_t first = position - part.first;
  const size_t end = first + count;
  while (first < end) {
    const bool masked = input_.masked(part.offset + first);
    size_t next = input_.mask.empty() ? end : first + 1;
    while (next < end && input_.masked(part.offset + next) == masked) ++next;
    if (absl::Status status = visit(masked, first, next - first); !status.ok()) return status;
    first = next;
  }
  return absl::OkStatus();
}

absl::Status SliceEvaluator::AddOwnRatios(const Part& part, size_t first, size_t count) {
  if (input_.own_log_probs.empty()) return absl::OkStatus();
  const PositionOutput output = part.output.Part(first, count);
  for (size_t i = 0; i < count; ++i) {
    const auto position = static_cast<uint32_t>(part.first + first + i);
    const float own = input_.own_log_probs[part.offset + first + i];
    if (!(own >= kLowestOwnLogProb && own <= kRoundingSlack)) {
      return NotALogProb("own_log_probs", position, own);
    }
    const float current = input_.current.sampled_log_probs()[part.offset + first + i];
    if (!(current <= kRoundingSlack)) return NotALogProb("sampled_log_probs", position, current);
    const float log_ratio = Flush(current - own);
    if (!output.view.log_modified_ratios.empty()) output.view.log_modified_ratios[i] = log_ratio;
    if (!output.view.modified_ratios.empty()) output.view.modified_ratios[i] = Exp32(log_ratio);
    if (!output.reference_log_probs.empty()) output.reference_log_probs[i] = own;
    if (!output.total_variations.empty()) {
      output.total_variations[i] = DppoBinary::TotalVariation(current, own);
    }
  }
  return absl::OkStatus();
}

absl::Status SliceEvaluator::AddMissingPositions(const Part& part, uint32_t position,
                                                 uint32_t count, MissingReason reason) {
  return ForEachMaskRange(
      part, position, count, [&](bool masked, size_t first, size_t length) -> absl::Status {
        const PositionOutput output = part.output.Part(first, length);
        if (masked) {
          AddMasked(output, length, part.result.counted.sums);
          return absl::OkStatus();
        }
        std::ranges::fill(output.view.decisions, Decision::kMissing);
        std::ranges::fill(output.view.acceptance_probabilities, 0.0f);
        part.result.counted.sums.missing += static_cast<int64_t>(length);
        part.result.counted.missing[static_cast<size_t>(reason)] += static_cast<int64_t>(length);
        AddMissing(part.result.missing, {static_cast<uint32_t>(part.first + first),
                                         static_cast<uint32_t>(length), reason});
        return AddOwnRatios(part, first, length);
      });
}

absl::Status SliceEvaluator::AddPiece(const Part& part, const Sequence::Reader::Piece& piece) {
  if (const auto reason = ReasonMissing(part.slice, piece); reason.has_value()) {
    return AddMissingPositions(part, piece.first_position, piece.count, *reason);
  }
  const size_t age = AgeClassOf(piece.block->policy_version(), versions_.policy);
  return ForEachMaskRange(part, piece.first_position, piece.count,
                          [&](bool masked, size_t first, size_t length) -> absl::Status {
                            if (masked) {
                              AddMasked(part.output.Part(first, length), length,
                                        part.result.counted.sums);
                              return absl::OkStatus();
                            }
                            const auto position = static_cast<uint32_t>(part.first + first);
                            const auto count = static_cast<uint32_t>(length);
                            const uint32_t index = piece.index + (position - piece.first_position);
                            const BlockRange behavior = piece.block->Range(index, count);
                            const absl::StatusOr<CurrentView> current =
                                input_.current.Read(behavior, part.offset + first, position);
                            if (!current.ok()) return current.status();
                            ages_.push_back(age);
                            ranges_.push_back({.sequence_key = part.slice.sequence()->key(),
                                               .first_position = position,
                                               .behavior = behavior,
                                               .current = *current,
                                               .output = part.output.Part(first, count).view,
                                               .sums = &decided_by_age_[age],
                                               .prefix_sums = part.result.prefix_sums});
                            return absl::OkStatus();
                          });
}

absl::Status SliceEvaluator::CheckCurrentValues() const {
  for (const BackendRange& range : ranges_) {
    absl::Status status = ValidateCurrent(range.behavior, range.current, range.first_position);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SliceEvaluator::Decide(const Part& part) {
  backend_.Evaluate(input_.parameters, ranges_);
  for (const Sums& sums : decided_by_age_) decided_ += sums;
  if (const int64_t invalid = decided_.invalid; invalid > 0) {
    if (absl::Status status = CheckCurrentValues(); !status.ok()) return status;
    return absl::InternalError(
        absl::StrCat("the backend reported ", invalid, " invalid positions, but all are valid"));
  }
  if (input_.weight == v1::WEIGHT_EXPECTED) {
    decided_.d_sis = 0;
    for (Sums& sums : decided_by_age_) sums.d_sis = 0;
    for (const BackendRange& range : ranges_) {
      const int64_t d_sis = ReplaceByExpectedWeights(range);
      decided_.d_sis += d_sis;
      range.sums->d_sis += d_sis;
    }
  }
  for (const BackendRange& range : ranges_) {
    const PositionOutput output =
        part.output.Part(range.first_position - part.first, range.output.decisions.size());
    if (!output.reference_log_probs.empty()) {
      std::ranges::copy(range.behavior.sampled_log_probs, output.reference_log_probs.begin());
    }
    if (!output.total_variations.empty()) {
      ComputeTopKTotalVariations(input_.parameters, range, output.total_variations);
    }
  }
  part.result.counted.sums += decided_;
  return absl::OkStatus();
}

absl::Status SliceEvaluator::AddStatistics(const Part& part) {
  return statistics_.Add({.offset = part.offset,
                          .first_position = part.first,
                          .ranges = ranges_,
                          .ages = ages_,
                          .sums = decided_,
                          .sums_by_age = decided_by_age_,
                          .output = part.output},
                         part.result);
}

}  // namespace sis
