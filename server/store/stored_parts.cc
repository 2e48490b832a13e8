#include "server/store/stored_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/block/check.h"
#include "kernels/block/pack.h"

namespace sis {
namespace {

std::span<const std::byte> BytesOf(const StoredPart& part) {
  return std::as_bytes(std::span(part.bytes));
}

std::string ToString(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::Status ApplyBlock(const StoredPart& part, const RunConfig& config, Sequence& sequence,
                        int64_t& bytes_short) {
  const absl::StatusOr<BlockView> block = CheckBlock(BytesOf(part));
  if (!block.ok()) {
    return absl::DataLossError(absl::StrCat("a stored block: ", block.status().message()));
  }
  const BlockHeader& header = block->header;
  if (header.slots != config.top_k || header.vocabulary_size != config.vocabulary_size ||
      header.first_position != part.position || header.positions != part.count) {
    return absl::DataLossError(
        absl::StrCat("a stored block at position ", part.position, " is of another sequence"));
  }
  absl::Status status = sequence.Append(*block);
  if (absl::IsResourceExhausted(status)) bytes_short = sequence.BytesToAppend(*block);
  return status;
}

absl::Status ApplyGap(const StoredPart& part, Sequence& sequence, int64_t& bytes_short) {
  const bool is_one = part.bytes.size() == 1;
  const auto reason = static_cast<MissingReason>(is_one ? part.bytes[0] : 0);
  const bool is_corrupt = reason == MissingReason::kCorrupt;
  if (part.count == 0 || part.count > UINT32_MAX - part.position ||
      (!IsReasonOfGap(reason) && !is_corrupt)) {
    return absl::DataLossError(
        absl::StrCat("a stored gap at position ", part.position, " has no such length or reason"));
  }
  absl::Status status = sequence.AppendGap({part.position, part.count, reason}).status();
  if (absl::IsResourceExhausted(status)) bytes_short = Sequence::kGapBytes;
  // Memory may have what is damaged in the store.
  return is_corrupt && absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

}  // namespace

StoredPart BlockPart(const BlockView& block, uint32_t index, uint32_t count) {
  const bool is_whole = count == block.header.positions;
  return {.kind = StoredPart::Kind::kBlock,
          .position = block.header.first_position + index,
          .count = count,
          .bytes = ToString(is_whole ? block.bytes : SliceBlock(block, index, count))};
}

StoredPart GapPart(const Missing& gap) {
  return {.kind = StoredPart::Kind::kGap,
          .position = gap.first_position,
          .count = gap.count,
          .bytes = std::string(1, static_cast<char>(gap.reason))};
}

StoredPart SealPart(uint32_t length, std::string_view annotation) {
  return {.kind = StoredPart::Kind::kSeal, .position = length, .bytes = std::string(annotation)};
}

absl::Status ApplyPart(const StoredPart& part, const RunConfig& config, Sequence& sequence,
                       int64_t& bytes_short) {
  switch (part.kind) {
    case StoredPart::Kind::kBlock:
      return ApplyBlock(part, config, sequence, bytes_short);
    case StoredPart::Kind::kGap:
      return ApplyGap(part, sequence, bytes_short);
    case StoredPart::Kind::kSeal: {
      absl::Status status = sequence.Seal(part.position, part.bytes);
      if (absl::IsResourceExhausted(status)) bytes_short = Sequence::AnnotationBytes(part.bytes);
      return status;
    }
  }
  return absl::DataLossError("a stored part of no kind");
}

std::vector<StoredPart> NewParts(const StoredPart& part, std::span<const StoredPart> stored) {
  if (part.kind != StoredPart::Kind::kBlock) return {part};
  std::vector<StoredPart> parts;
  const BlockView block = *OpenBlock(BytesOf(part), /*checksums=*/false);
  const uint32_t end = part.position + part.count;
  uint32_t position = part.position;
  const auto add_up_to = [&](uint32_t stop) {
    if (position >= stop) return;
    parts.push_back(BlockPart(block, position - part.position, stop - position));
  };
  for (const StoredPart& other : stored) {
    const uint32_t its_end = other.position + other.count;
    if (other.kind != StoredPart::Kind::kBlock || its_end <= position) continue;
    if (other.position >= end) break;
    add_up_to(other.position);
    position = its_end;
  }
  add_up_to(end);
  return parts;
}

std::vector<StoredPart> MergedBlocks(const Sequence& sequence,
                                     const std::map<uint32_t, uint32_t>& stored, uint32_t least) {
  std::vector<StoredPart> blocks;
  const Sequence::Reader reader(sequence);
  const uint32_t length = reader.committed_length();
  reader.ForEachPiece(0, length, [&](const Sequence::Reader::Piece& piece) {
    if (piece.block == nullptr || piece.count < least) return;
    const auto inside = stored.upper_bound(piece.first_position);
    if (inside == stored.end() || inside->first >= piece.block->end()) return;
    if (!piece.block->Check().ok()) return;
    blocks.push_back(BlockPart(piece.block->view(), 0, piece.count));
  });
  return blocks;
}

}  // namespace sis
