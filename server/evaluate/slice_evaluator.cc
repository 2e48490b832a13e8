#include "server/evaluate/slice_evaluator.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/decide/algorithms/expected_weight.h"
#include "kernels/decide/algorithms/top_k_total_variation.h"
#include "kernels/decide/validate_current.h"
#include "server/messages/arrays.h"

namespace sis {
namespace {

// Ragged log-probs in rows [n, slots].
CurrentView InRows(const CurrentView& ragged, size_t slots, std::span<float> rows) {
  const CurrentReader reader(ragged, slots);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = reader.At(i / slots, i % slots);
  CurrentView view = ragged;
  view.log_probs = rows;
  view.counts = {};
  return view;
}

void AddMasked(const PositionOutput& output, size_t count, Sums& sums) {
  std::ranges::fill(output.view.decisions, Decision::kMasked);
  std::ranges::fill(output.view.acceptance_probabilities, 0.0f);
  std::ranges::fill(output.view.log_modified_ratios, 0.0f);
  std::ranges::fill(output.view.modified_ratios, 1.0f);
  sums.masked += static_cast<int64_t>(count);
}

// Nats. Lower log-probs of the trainer are an engine's sentinel for -inf, such as -9999.
constexpr float kLowestOwnLogProb = -1000.0f;

absl::Status NotALogProb(absl::string_view field, uint32_t position, float value) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": position ", position, ": ", value, " is not a log-prob"));
}

// FailedPrecondition unless each position has as many slots as these say; empty says nothing.
absl::Status CompareCounts(std::span<const uint16_t> counts, const BehaviorView& behavior,
                           size_t slots, uint32_t first_position) {
  const LogProbReader reader(behavior.log_probs, behavior.grouped_log_probs, slots,
                             behavior.ragged_log_probs);
  const RaggedLogProbs& ragged = behavior.ragged_log_probs;
  if (!ragged.empty() &&
      std::ranges::equal(counts, ragged.counts.subspan(ragged.first_lane, counts.size()))) {
    return absl::OkStatus();
  }
  const auto uses = [&](size_t i, size_t slot) { return reader.At(i, slot) != kMinusInfinity; };
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t count = counts[i];
    if (ragged.empty() ? (count == 0 || uses(i, count - 1)) && (count == slots || !uses(i, count))
                       : ragged.counts[ragged.first_lane + i] == count) {
      continue;
    }
    size_t recorded = 0;
    while (recorded < slots && uses(i, recorded)) ++recorded;
    return absl::FailedPreconditionError(absl::StrCat("gathered.top_k_counts: position ",
                                                      first_position + i, ": ", count,
                                                      ", but the record has ", recorded, " slots"));
  }
  return absl::OkStatus();
}

// FailedPrecondition if the request has other sampled ids than those that are recorded at unmasked
// positions of [first, first + count), which begin at `offset` in the request.
absl::Status CheckSampledIds(const SliceRange& slice, const Sequence::Reader& reader,
                             const EvaluateInput& input, uint32_t first, uint32_t count,
                             size_t offset) {
  if (input.sampled_ids.bytes.empty()) return absl::OkStatus();
  absl::Status status;
  std::array<int32_t, Page::kPositions> recorded;
  std::array<uint16_t, Page::kPositions> ranks;
  reader.ForEachPiece(first, count, [&](const Sequence::Reader::Piece& piece) {
    if (!status.ok() || piece.page == nullptr || piece.page->corrupt()) return;
    const std::span<int32_t> ids = std::span(recorded).first(piece.count);
    piece.page->Read(piece.index, {.sampled_ids = ids,
                                   .sampled_log_probs = {},
                                   .ids = {},
                                   .log_probs = {},
                                   .ranks = std::span(ranks).first(piece.count)});
    for (uint32_t i = 0; i < piece.count; ++i) {
      const uint32_t position = piece.first_position + i;
      const size_t row = offset + (position - first);
      if (input.masked(row) || input.sampled_ids.At(row) == static_cast<uint32_t>(ids[i])) continue;
      status = absl::FailedPreconditionError(
          absl::StrCat("sampled_ids: ", input.sampled_ids.At(row), " at position ", position,
                       " of ", ToString(slice.name), ", but ", ids[i],
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
    ForgetStretches();
    CurrentView current;
    if (!input_.own_log_probs.empty()) {
      current.sampled_log_probs = input_.current.sampled_log_probs().subspan(offset, count);
    }
    const Part part{slice, first, offset, current, output, result};
    absl::Status status =
        AddMissingPositions(part, first, count, std::get<MissingReason>(slice.found));
    if (!status.ok()) return named(status);
    if (inspected != nullptr) Keep(part, *inspected);
    return result;
  }

  // One sequence is locked at a time: two could wait for each other.
  const Sequence::Reader reader(*slice.sequence());
  absl::Status status = CompareWithFetched(slice, reader);
  if (status.ok()) status = CheckSampledIds(slice, reader, input_, first, count, offset);
  if (!status.ok()) return status;
  if (inspected != nullptr) {
    result.inspected_digest = reader.Digest(first, static_cast<uint32_t>(inspected->size()));
  }
  // A part at a time: what is copied out of the request is then still in the core's cache when it
  // is used.
  const size_t pages =
      backend_.values_per_call() / static_cast<size_t>(input_.parameters.slots) / Page::kPositions;
  const uint32_t step = static_cast<uint32_t>(std::max<size_t>(1, pages)) * Page::kPositions;
  const uint32_t end = first + count;
  for (uint32_t from = first; from < end;) {
    const uint32_t to = std::min(end, (from / Page::kPositions) * Page::kPositions + step);
    const PositionOutput part_output =
        statistics_.Complete(output.Part(from - first, to - from), to - from);
    const Part part{slice,
                    from,
                    offset + (from - first),
                    input_.current.Read(offset + (from - first), to - from),
                    part_output,
                    result};
    ForgetStretches();
    reader.ForEachPiece(from, to - from, [&](const Sequence::Reader::Piece& piece) {
      status.Update(AddPiece(part, piece));
    });
    if (status.ok()) status = Decide(part);
    if (status.ok()) status = AddStatistics(part);
    if (!status.ok()) return named(status);
    if (inspected != nullptr) Keep(part, *inspected);
    from = to;
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
  // Where nothing was fetched there is nothing that could have gone since.
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

void SliceEvaluator::ForgetStretches() {
  stretches_.clear();
  staleness_.clear();
  unpacked_.Clear();
  decided_ = {};
}

template <typename Visit>
absl::Status SliceEvaluator::ForEachMaskStretch(const Part& part, uint32_t position, uint32_t count,
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
    const float current = part.current.sampled_log_probs[first + i];
    if (!(current <= kRoundingSlack)) return NotALogProb("sampled_log_probs", position, current);
    const float log_ratio = Flush(current - own);
    if (!output.view.log_modified_ratios.empty()) output.view.log_modified_ratios[i] = log_ratio;
    if (!output.view.modified_ratios.empty()) output.view.modified_ratios[i] = Exp32(log_ratio);
    if (!output.reference_log_probs.empty()) output.reference_log_probs[i] = own;
    if (!output.total_variations.empty()) {
      const Token token{
          .ratio = Exp32(log_ratio), .current_log_prob = current, .reference_log_prob = own};
      output.total_variations[i] = DppoBinary::TotalVariation(token);
    }
  }
  return absl::OkStatus();
}

absl::Status SliceEvaluator::AddMissingPositions(const Part& part, uint32_t position,
                                                 uint32_t count, MissingReason reason) {
  return ForEachMaskStretch(
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
  return ForEachMaskStretch(
      part, piece.first_position, piece.count,
      [&](bool masked, size_t first, size_t length) -> absl::Status {
        if (masked) {
          AddMasked(part.output.Part(first, length), length, part.result.counted.sums);
          return absl::OkStatus();
        }
        const auto position = static_cast<uint32_t>(part.first + first);
        const auto count = static_cast<uint32_t>(length);
        const uint32_t index = piece.index + (position - piece.first_position);
        const BehaviorView behavior = piece.page->Behavior(index, count, unpacked_);
        absl::Status status =
            CompareCounts(input_.current.Counts(part.offset + first, length), behavior,
                          static_cast<size_t>(input_.parameters.slots), position);
        if (!status.ok()) return status;
        stretches_.push_back({.sequence_key = part.slice.sequence()->key(),
                              .first_position = position,
                              .behavior = behavior,
                              .current = CurrentOf(part, behavior, first, count),
                              .output = part.output.Part(first, count).view,
                              .sums = &decided_,
                              .prefix_sums = part.result.prefix_sums});
        staleness_.push_back(StalenessClassOf(piece.version, versions_.policy));
        return absl::OkStatus();
      });
}

CurrentView SliceEvaluator::CurrentOf(const Part& part, const BehaviorView& behavior, size_t first,
                                      size_t count) {
  const CurrentView current =
      input_.current.Part(part.current, part.offset, part.offset + first, count);
  if (current.counts.empty() || !behavior.ragged_log_probs.empty()) return current;
  const auto slots = static_cast<size_t>(input_.parameters.slots);
  // Room for the whole part, as earlier stretches of it stay where they are.
  const size_t positions = part.current.sampled_log_probs.size();
  return InRows(current, slots,
                Room(rows_, positions * slots).subspan(first * slots, count * slots));
}

absl::Status SliceEvaluator::CheckCurrentValues() const {
  for (const Stretch& stretch : stretches_) {
    absl::Status status = ValidateCurrent(stretch.behavior, stretch.current,
                                          input_.parameters.slots, stretch.first_position);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SliceEvaluator::Decide(const Part& part) {
  backend_.Evaluate(input_.parameters, stretches_);
  if (const int64_t invalid = decided_.invalid; invalid > 0) {
    if (absl::Status status = CheckCurrentValues(); !status.ok()) return status;
    return absl::InternalError(
        absl::StrCat("the backend found ", invalid, " invalid positions of none"));
  }
  if (input_.weight == v1::EXPECTED) {
    decided_.d_sis = 0;
    for (const Stretch& stretch : stretches_) {
      decided_.d_sis += ReplaceByExpectedWeights(stretch);
    }
  }
  for (const Stretch& stretch : stretches_) {
    const PositionOutput output =
        part.output.Part(stretch.first_position - part.first, stretch.output.decisions.size());
    if (!output.reference_log_probs.empty()) {
      std::ranges::copy(stretch.behavior.sampled_log_probs, output.reference_log_probs.begin());
    }
    if (!output.total_variations.empty()) {
      ComputeTopKTotalVariations(input_.parameters, stretch, output.total_variations);
    }
  }
  part.result.counted.sums += decided_;
  return absl::OkStatus();
}

absl::Status SliceEvaluator::AddStatistics(const Part& part) {
  return statistics_.Add({.offset = part.offset,
                          .first_position = part.first,
                          .stretches = stretches_,
                          .staleness = staleness_,
                          .sums = decided_,
                          .current_sampled_log_probs = part.current.sampled_log_probs,
                          .output = part.output},
                         part.result);
}

}  // namespace sis
