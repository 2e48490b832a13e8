#include "server/messages/slices.h"

#include <algorithm>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "server/cache/limits.h"
#include "server/messages/cache_messages.h"

namespace sis {
namespace {

absl::StatusOr<std::optional<LogRatioSum>> ParseLogRatioSum(const v1::Slice& slice, int index) {
  if (!slice.has_sequence_log_ratio_sum()) return std::optional<LogRatioSum>();
  const v1::LogRatioSum& message = slice.sequence_log_ratio_sum();
  // Far above kMaxPositions. No position adds more than 64 nats.
  constexpr uint64_t kLargestCount = uint64_t{1} << 26;
  const uint64_t magnitude = message.log_ratio() < 0
                                 ? 0 - static_cast<uint64_t>(message.log_ratio())
                                 : static_cast<uint64_t>(message.log_ratio());
  if (message.positions() > kLargestCount || magnitude > message.positions() << 36) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slices[", index, "].sequence_log_ratio_sum: ", message.log_ratio(), " over ",
        message.positions(), " positions: at most 2^26 positions, and 2^36 for each of them"));
  }
  return LogRatioSum{message.log_ratio(), static_cast<int64_t>(message.positions())};
}

Run::Found FindRecords(Run& run, const SequenceName& name, const v1::Slice& slice) {
  if (run.backing() == nullptr) return run.Find(name);
  Run::Found found = run.backing()->Find(run, name);
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (sequence == nullptr || !slice.has_record_digest() || slice.record_digest() != 0) return found;
  const uint64_t oldest_fresh = run.oldest_fresh_version();  // before the sequence is locked
  const uint64_t digest =
      Sequence::Reader(**sequence).Digest(slice.first_position(), slice.length(), oldest_fresh);
  // A record that the trainer could not fetch, because the store was down, does not count: the
  // trainer has no values for it.
  return digest == 0 ? found : MissingReason::kStoreDown;
}

absl::StatusOr<SliceRange> ParseSlice(Run& run, const v1::Slice& slice, int index) {
  absl::StatusOr<SequenceName> name = ParseSequence(slice.sequence());
  if (!name.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slices[", index, "].", name.status().message()));
  }
  const uint64_t end = uint64_t{slice.first_position()} + slice.length();
  if (end > static_cast<uint64_t>(kMaxPositions)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slices[", index, "] of ", ToString(*name), ": first_position ", slice.first_position(),
        " + length ", slice.length(), " is beyond ", kMaxPositions));
  }
  const absl::StatusOr<std::optional<LogRatioSum>> log_ratio_sum = ParseLogRatioSum(slice, index);
  if (!log_ratio_sum.ok()) return log_ratio_sum.status();
  Run::Found found = FindRecords(run, *name, slice);
  return SliceRange{.name = *std::move(name),
                    .first_position = slice.first_position(),
                    .count = slice.length(),
                    .found = std::move(found),
                    .expected_digest = slice.has_record_digest()
                                           ? std::optional<uint64_t>(slice.record_digest())
                                           : std::nullopt,
                    .sequence_log_ratio_sum = *log_ratio_sum};
}

// `settle` resolves a slice of length 0, or returns an error.
absl::StatusOr<std::vector<SliceRange>> ParseSlices(
    Run& run, const SliceMessages& messages,
    absl::FunctionRef<absl::Status(int index, SliceRange& slice)> settle) {
  if (messages.empty()) return absl::InvalidArgumentError("slices: none given");
  // Every slice has at least one position, or is a whole sequence.
  if (messages.size() > run.limits().max_evaluate_positions) {
    return absl::InvalidArgumentError(absl::StrCat("slices: ", messages.size(), ", more than ",
                                                   run.limits().max_evaluate_positions));
  }
  std::vector<SliceRange> slices;
  slices.reserve(messages.size());
  for (int i = 0; i < messages.size(); ++i) {
    absl::StatusOr<SliceRange> slice = ParseSlice(run, messages[i], i);
    if (!slice.ok()) return slice.status();
    if (absl::Status status = settle(i, *slice); !status.ok()) return status;
    slices.push_back(*std::move(slice));
  }
  if (const int64_t total = TotalPositions(slices); total > run.limits().max_evaluate_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "slices: ", total, " positions in all, more than ", run.limits().max_evaluate_positions));
  }
  return slices;
}

absl::Status CheckDisjoint(const std::vector<SliceRange>& slices) {
  std::vector<const SliceRange*> sorted;
  sorted.reserve(slices.size());
  for (const SliceRange& slice : slices) sorted.push_back(&slice);
  const auto key = [](const SliceRange* slice) {
    return std::tie(slice->name.id, slice->name.attempt, slice->first_position);
  };
  std::ranges::sort(sorted, {}, key);
  for (size_t i = 1; i < sorted.size(); ++i) {
    const SliceRange& before = *sorted[i - 1];
    const SliceRange& after = *sorted[i];
    if (before.name == after.name && after.first_position < before.first_position + before.count) {
      return absl::InvalidArgumentError(absl::StrCat(
          "slices overlap at position ", after.first_position, " of ", ToString(after.name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSequenceId(std::string_view id) {
  if (!id.empty() && id.size() <= kMaxIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sequence.id: ", id.size(), " bytes, not 1 to ", kMaxIdBytes));
}

absl::StatusOr<SequenceName> ParseSequence(const v1::SequenceRef& ref) {
  if (absl::Status status = CheckSequenceId(ref.id()); !status.ok()) return status;
  return SequenceName{ref.id(), ref.attempt()};
}

absl::StatusOr<std::vector<SliceRange>> ParseFetchSlices(Run& run, const SliceMessages& messages) {
  return ParseSlices(run, messages, [](int, SliceRange& slice) {
    if (slice.count == 0 && slice.sequence() != nullptr) {
      const Sequence& sequence = *slice.sequence();
      const uint32_t length = sequence.sealed_length().value_or(sequence.committed_length());
      slice.count = length - std::min(length, slice.first_position);
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<SliceRange>> ParseEvaluateSlices(Run& run,
                                                            const SliceMessages& messages) {
  absl::StatusOr<std::vector<SliceRange>> slices =
      ParseSlices(run, messages, [](int index, SliceRange& slice) {
        if (slice.count > 0) return absl::OkStatus();
        return absl::InvalidArgumentError(
            absl::StrCat("slices[", index, "] of ", ToString(slice.name), ": length 0"));
      });
  if (!slices.ok()) return slices.status();
  if (absl::Status status = CheckDisjoint(*slices); !status.ok()) return status;
  return slices;
}

absl::Status KeepSequences(Run& run, const std::vector<SliceRange>& slices, double keep_seconds) {
  if (!(keep_seconds >= 0 && keep_seconds <= kMaxKeepSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("keep_seconds: out of range, got ", keep_seconds,
                                                   "; must be in [0, ", kMaxKeepSeconds, "]"));
  }
  if (keep_seconds == 0) return absl::OkStatus();
  std::vector<SequenceName> names;
  names.reserve(slices.size());
  for (const SliceRange& slice : slices) names.push_back(slice.name);
  run.Keep(names, absl::Seconds(keep_seconds));
  return absl::OkStatus();
}

int64_t TotalPositions(const std::vector<SliceRange>& slices) {
  int64_t total = 0;
  for (const SliceRange& slice : slices) total += slice.count;
  return total;
}

void AddMissingRanges(size_t slice, const std::vector<Missing>& missing,
                      google::protobuf::RepeatedPtrField<v1::MissingRange>& ranges) {
  for (const Missing& range : missing) {
    v1::MissingRange& message = *ranges.Add();
    message.set_slice(static_cast<uint32_t>(slice));
    message.set_first_position(range.first_position);
    message.set_length(range.count);
    message.set_reason(ToMessage(range.reason));
  }
}

std::optional<MissingReason> ReasonMissing(const Sequence::Reader::Piece& piece,
                                           uint64_t oldest_fresh_version) {
  if (piece.block == nullptr) return piece.reason;
  if (piece.block->corrupt()) return MissingReason::kCorrupt;
  if (piece.block->policy_version() < oldest_fresh_version) return MissingReason::kStale;
  return std::nullopt;
}

}  // namespace sis
