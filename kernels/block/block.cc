#include "kernels/block/block.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/numerics/crc32c.h"

namespace sis {
namespace {

constexpr uint32_t kMaxVocabulary = 1 << 24;

size_t Filled(size_t bytes) { return (bytes + 7) / 8 * 8; }

absl::Status Bad(absl::string_view field, uint64_t value, absl::string_view law) {
  return absl::InvalidArgumentError(absl::StrCat("block, ", field, ": ", value, " ", law));
}

absl::Status CheckHeader(const BlockHeader& h) {
  if (absl::string_view(h.magic, 4) != "SISB") {
    return absl::InvalidArgumentError("block: it does not begin with SISB");
  }
  if (h.version != 1) return Bad("version", h.version, "must be 1");
  if (h.encoding > BlockEncoding::kFixed16) {
    return Bad("encoding", static_cast<uint64_t>(h.encoding), "must be 0 or 1");
  }
  if (h.vocabulary_size < 1 || h.vocabulary_size > kMaxVocabulary) {
    return Bad("vocabulary_size", h.vocabulary_size, "must be in [1, 2^24]");
  }
  if (h.id_bytes < LeastIdBytes(h.vocabulary_size) || h.id_bytes > 4) {
    return Bad("id_bytes", h.id_bytes,
               absl::StrCat("does not do for a vocabulary of ", h.vocabulary_size));
  }
  if (h.slots < 1 || h.slots > kMaxBlockSlots) return Bad("slots", h.slots, "must be in [1, 254]");
  if (h.positions < 1 || h.positions > kMaxBlockPositions) {
    return Bad("positions", h.positions, "must be in [1, 4096]");
  }
  if (uint64_t{h.first_position} + h.positions > uint64_t{1} << 32) {
    return Bad("first_position", h.first_position,
               absl::StrCat("puts the last of ", h.positions, " positions above 2^32 - 1"));
  }
  if (h.used_slots > uint64_t{h.positions} * h.slots) {
    return Bad("used_slots", h.used_slots,
               absl::StrCat("is above ", h.positions, " positions times ", h.slots, " slots"));
  }
  if (std::ranges::any_of(h.zeros, [](uint8_t byte) { return byte != 0; })) {
    return absl::InvalidArgumentError("block: the last 24 bytes of the header are not 0");
  }
  return absl::OkStatus();
}

// Returns the checksums of the header with each part.
std::array<uint32_t, 2> Checksums(BlockHeader header, std::span<const std::byte> bytes) {
  header.crc32c[0] = header.crc32c[1] = 0;
  const uint32_t crc = ExtendCrc32c(0, std::as_bytes(std::span(&header, 1)));
  const size_t part2 = BlockLayout(header).sampled_log_probs;
  return {ExtendCrc32c(crc, bytes.subspan(sizeof header, part2 - sizeof header)),
          ExtendCrc32c(crc, bytes.subspan(part2))};
}

}  // namespace

BlockLayout::BlockLayout(const BlockHeader& h) {
  const size_t t = h.positions, s = h.used_slots;
  log_probs = sizeof(BlockHeader);
  multipliers = log_probs + (h.fixed() ? sizeof(uint16_t) : sizeof(float)) * s;
  ranks = multipliers + (h.fixed() ? t : 0);
  ranks_end = ranks + t;
  sampled_log_probs = Filled(ranks_end);
  counts = sampled_log_probs + sizeof(float) * t;
  sampled_ids = counts + t;
  ids = sampled_ids + h.id_bytes * t;
  ids_end = ids + h.id_bytes * s;
  end = Filled(ids_end);
}

BlockView::BlockView(const BlockHeader& h, std::span<const std::byte> b) : header(h), bytes(b) {
  const BlockLayout at(h);
  const std::byte* const begin = b.data();
  log_probs = begin + at.log_probs;
  multipliers = reinterpret_cast<const uint8_t*>(begin + at.multipliers);
  ranks = reinterpret_cast<const uint8_t*>(begin + at.ranks);
  sampled_log_probs = reinterpret_cast<const float*>(begin + at.sampled_log_probs);
  counts = reinterpret_cast<const uint8_t*>(begin + at.counts);
  sampled_ids = begin + at.sampled_ids;
  ids = begin + at.ids;
}

BlockRange::BlockRange(const BlockView& view, uint32_t first, uint32_t count, const BlockTag* tag)
    : encoding(view.header.encoding),
      ranks(view.ranks + first, count),
      sampled_log_probs(view.sampled_log_probs + first, count),
      counts(view.counts + first, count),
      block(view.decision_bytes()),
      tag(tag) {
  const bool fixed = view.header.fixed();
  if (fixed) multipliers = {view.multipliers + first, count};
  const size_t slots_before = std::accumulate(view.counts, view.counts + first, size_t{0});
  log_probs = view.log_probs + slots_before * (fixed ? sizeof(uint16_t) : sizeof(float));
  used_slots = std::accumulate(counts.begin(), counts.end(), size_t{0});
}

float BlockRange::LogProbAt(size_t i, size_t used) const {
  if (encoding == BlockEncoding::kFixed16) {
    uint16_t code;
    std::memcpy(&code, log_probs + used * sizeof code, sizeof code);
    return Fixed16(code, multipliers[i]);
  }
  float log_prob;
  std::memcpy(&log_prob, log_probs + used * sizeof log_prob, sizeof log_prob);
  return log_prob;
}

absl::StatusOr<BlockView> OpenBlock(std::span<const std::byte> bytes, bool checksums) {
  BlockHeader header;
  if (bytes.size() < sizeof header)
    return Bad("bytes", bytes.size(), "are fewer than a header has");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (absl::Status status = CheckHeader(header); !status.ok()) return status;
  const BlockLayout at(header);
  if (at.end > kMaxBlockBytes) return Bad("bytes", at.end, "are more than 1 MiB");
  if (bytes.size() != at.end) {
    return Bad("bytes", bytes.size(), absl::StrCat("are not the ", at.end, " of the header"));
  }
  if (checksums) {
    const std::array<uint32_t, 2> found = Checksums(header, bytes);
    for (const int part : {0, 1}) {
      if (found[part] != header.crc32c[part]) {
        return Bad("crc32c", header.crc32c[part],
                   absl::StrCat("is not the checksum of part ", part + 1, ", ", found[part]));
      }
    }
  }
  for (const auto& [begin, end] :
       {std::pair(at.ranks_end, at.sampled_log_probs), std::pair(at.ids_end, at.end)}) {
    const auto filling = bytes.subspan(begin, end - begin);
    if (std::ranges::any_of(filling, [](std::byte byte) { return byte != std::byte{0}; })) {
      return absl::InvalidArgumentError("block: the padding of a part is not 0");
    }
  }
  const BlockView view(header, bytes);
  uint64_t used = 0;
  for (uint32_t i = 0; i < header.positions; ++i) {
    if (view.counts[i] > header.slots) {
      return Bad(absl::StrCat("counts at position ", header.first_position + i), view.counts[i],
                 absl::StrCat("is above the ", header.slots, " slots of the header"));
    }
    used += view.counts[i];
  }
  if (used != header.used_slots) {
    return Bad("counts", used,
               absl::StrCat("slots, not the ", header.used_slots, " of the header"));
  }
  return view;
}

void SealBlock(std::span<std::byte> block) {
  BlockHeader header;
  std::memcpy(&header, block.data(), sizeof header);
  const std::array<uint32_t, 2> checksums = Checksums(header, block);
  std::memcpy(header.crc32c, checksums.data(), sizeof header.crc32c);
  std::memcpy(block.data(), &header, sizeof header);
}

}  // namespace sis
