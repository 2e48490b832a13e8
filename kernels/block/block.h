// Record blocks: the records of consecutive positions as plain arrays (docs/record_block.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/numerics/host_device.h"

namespace sis {

enum class BlockEncoding : uint8_t { kFloat32 = 0, kFixed16 = 1 };

inline constexpr uint32_t kMaxBlockPositions = 4096;
inline constexpr size_t kMaxBlockBytes = size_t{1} << 20;
inline constexpr int kMaxBlockSlots = 254;
inline constexpr uint8_t kBlockRankOutside = 255;

// As it stands in a block.
struct BlockHeader {
  char magic[4];       // "SISB"
  uint32_t crc32c[2];  // of header and part, for each part; both count as 0 in the header
  uint8_t version;
  BlockEncoding encoding;
  uint8_t id_bytes;
  uint8_t slots;  // K
  uint32_t vocabulary_size;
  uint32_t first_position;
  uint32_t positions;   // T
  uint32_t used_slots;  // S
  uint64_t policy_version;
  uint8_t zeros[24];

  bool fixed() const { return encoding == BlockEncoding::kFixed16; }
};
static_assert(sizeof(BlockHeader) == 64);

// Where the sections of a block begin, in bytes. Both parts end where the next one, or the block,
// does; they are filled with zeros.
struct BlockLayout {
  size_t log_probs, multipliers, ranks, ranks_end;                 // part 1
  size_t sampled_log_probs, sampled_ids, ids, counts, counts_end;  // part 2
  size_t end;

  explicit BlockLayout(const BlockHeader& header);
};

// A block in memory that somebody else owns. The sections of a view are inside of it.
struct BlockView {
  BlockHeader header;
  std::span<const std::byte> bytes;
  const std::byte* log_probs;      // float [S] or uint16_t [S]
  const uint8_t* multipliers;      // [T] with kFixed16
  const uint8_t* ranks;            // [T]
  const float* sampled_log_probs;  // [T]
  const std::byte* sampled_ids;    // id_bytes [T]
  const std::byte* ids;            // id_bytes [S]
  const uint8_t* counts;           // [T]

  // `bytes` must be those of a block with this header, at an address that float may have.
  BlockView(const BlockHeader& header, std::span<const std::byte> bytes);
};

// The fixed16 code: (4096 - code * multiplier) * 2^-18, each step exact.
inline constexpr uint32_t kLowestCode16 = 65534;
inline constexpr uint32_t kMaxMultiplier16 = 255;
SIS_HOST_DEVICE inline float Fixed16(uint32_t code, uint32_t multiplier) {
  return static_cast<float>(4096 - static_cast<int32_t>(code * multiplier)) * 0x1p-18f;
}

inline uint8_t LeastIdBytes(uint32_t vocabulary_size) { return vocabulary_size <= 65536 ? 2 : 3; }

// The id at place `i` of a section of ids.
SIS_HOST_DEVICE inline int32_t BlockId(const std::byte* ids, size_t i, size_t id_bytes) {
  uint32_t id = 0;
  for (size_t b = 0; b < id_bytes; ++b)
    id |= uint32_t{static_cast<uint8_t>(ids[i * id_bytes + b])} << 8 * b;
  return static_cast<int32_t>(id);
}

// Looks at header, lengths, filling, counts and, if asked, checksums. InvalidArgument names the
// field and its value.
absl::StatusOr<BlockView> OpenBlock(std::span<const std::byte> bytes, bool checksums);

// Writes both checksums into the block, whose header and parts are complete.
void SealBlock(std::span<std::byte> block);

}  // namespace sis
