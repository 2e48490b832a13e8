#include "server/store/log_entries.h"

#include <cstring>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/block/check.h"
#include "server/store/stored_item.h"

namespace sis {
namespace {

void AppendToForm(std::string& form, const LogEntry& entry) {
  const std::string bytes = EncodeEntry(entry);
  const auto size = static_cast<uint32_t>(bytes.size());
  form.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(bytes);
}

absl::Status ReplayBlock(const LogEntry& entry, const RunConfig& config, Sequence& sequence,
                         int64_t& bytes_short) {
  const absl::StatusOr<BlockView> block = CheckBlock(std::as_bytes(std::span(entry.payload)));
  if (!block.ok()) {
    return absl::DataLossError(absl::StrCat("a stored block: ", block.status().message()));
  }
  if (block->header.slots != config.top_k ||
      block->header.vocabulary_size != config.vocabulary_size ||
      block->header.first_position != entry.position) {
    return absl::DataLossError(
        absl::StrCat("a stored block at position ", entry.position, " is of another sequence"));
  }
  absl::Status status = sequence.Append(*block);
  if (absl::IsResourceExhausted(status)) bytes_short = sequence.BytesToAppend(*block);
  return status;
}

// A gap's payload, little-endian.
struct [[gnu::packed]] GapPayload {
  uint32_t length;
  MissingReason reason;
};

absl::Status ReplayGap(const LogEntry& entry, Sequence& sequence, int64_t& bytes_short) {
  GapPayload gap = {};
  if (entry.payload.size() == sizeof(gap)) std::memcpy(&gap, entry.payload.data(), sizeof(gap));
  if (gap.length == 0 || gap.length > UINT32_MAX - entry.position ||
      gap.reason != MissingReason::kInvalidLogProb) {
    return absl::DataLossError(
        absl::StrCat("a stored gap at position ", entry.position, " has no such length or reason"));
  }
  absl::Status status = sequence.AppendGap({entry.position, gap.length, gap.reason}).status();
  if (absl::IsResourceExhausted(status)) bytes_short = Sequence::kGapBytes;
  return status;
}

}  // namespace

LogEntry BlockEntry(const BlockView& block) {
  return {.kind = LogEntry::Kind::kBlock,
          .position = block.header.first_position,
          .payload =
              std::string(reinterpret_cast<const char*>(block.bytes.data()), block.bytes.size())};
}

LogEntry GapEntry(const Missing& gap) {
  const GapPayload payload{gap.count, gap.reason};
  return {.kind = LogEntry::Kind::kGap,
          .position = gap.first_position,
          .payload = std::string(reinterpret_cast<const char*>(&payload), sizeof(payload))};
}

absl::Status Replay(const LogEntry& entry, const RunConfig& config, Sequence& sequence,
                    int64_t& bytes_short) {
  switch (entry.kind) {
    case LogEntry::Kind::kBlock:
      return ReplayBlock(entry, config, sequence, bytes_short);
    case LogEntry::Kind::kSeal: {
      absl::Status status = sequence.Seal(entry.position, entry.payload);
      if (absl::IsResourceExhausted(status)) bytes_short = Sequence::AnnotationBytes(entry.payload);
      return status;
    }
    case LogEntry::Kind::kGap:
      return ReplayGap(entry, sequence, bytes_short);
  }
  return absl::DataLossError("a log entry of no kind");
}

absl::StatusOr<std::string> WholeForm(const Sequence& sequence) {
  std::string form;
  absl::Status status;
  {
    const Sequence::Reader reader(sequence);
    const uint32_t length = reader.committed_length();
    // Before the blocks that fill them.
    for (const Missing& gap : reader.Gaps()) AppendToForm(form, GapEntry(gap));
    reader.Check(0, length);
    reader.ForEachPiece(0, length, [&](const Sequence::Reader::Piece& piece) {
      if (piece.block == nullptr) return;
      if (piece.block->corrupt()) {
        status = absl::DataLossError(absl::StrCat("position ", piece.first_position));
        return;
      }
      AppendToForm(form, BlockEntry(piece.block->view()));
    });
  }
  if (!status.ok()) return status;
  if (const std::optional<uint32_t> length = sequence.sealed_length(); length.has_value()) {
    AppendToForm(
        form,
        {.kind = LogEntry::Kind::kSeal, .position = *length, .payload = sequence.annotation()});
  }
  return form;
}

absl::StatusOr<std::vector<LogEntry>> ParseWholeForm(std::string_view form) {
  std::vector<LogEntry> entries;
  while (!form.empty()) {
    uint32_t size = 0;
    if (form.size() >= sizeof(size)) std::memcpy(&size, form.data(), sizeof(size));
    if (form.size() < sizeof(size) || form.size() - sizeof(size) < size) {
      return absl::DataLossError("a whole form that ends early");
    }
    absl::StatusOr<LogEntry> entry = ParseEntry(form.substr(sizeof(size), size));
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
    form.remove_prefix(sizeof(size) + size);
  }
  return entries;
}

}  // namespace sis
