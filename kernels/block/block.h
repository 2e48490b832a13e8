// Record blocks: the records of consecutive positions as plain arrays (docs/record_block.md).
#pragma once

#include <atomic>
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

// The header as stored in a block.
struct BlockHeader {
  char magic[4];       // "SISB"
  uint32_t crc32c[2];  // one per part, over header and part, with both checksums as 0
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

// Offsets of the sections of a block, in bytes. Both parts are padded with zeros to the beginning
// of the next part or the end of the block.
struct BlockLayout {
  size_t log_probs, multipliers, ranks, ranks_end;              // part 1
  size_t sampled_log_probs, counts, sampled_ids, ids, ids_end;  // part 2
  size_t end;

  explicit BlockLayout(const BlockHeader& header);
};

// A view of a block in memory owned by others. The pointers are to its sections.
struct BlockView {
  BlockHeader header;
  std::span<const std::byte> bytes;
  const std::byte* log_probs;      // float [S] or uint16_t [S]
  const uint8_t* multipliers;      // [T] with kFixed16
  const uint8_t* ranks;            // [T]
  const float* sampled_log_probs;  // [T]
  const uint8_t* counts;           // [T]
  const std::byte* sampled_ids;    // id_bytes [T]
  const std::byte* ids;            // id_bytes [S]

  // `bytes` must be a block with this header, aligned for float.
  BlockView(const BlockHeader& header, std::span<const std::byte> bytes);

  // Returns the bytes that decisions read: everything before the sampled ids.
  std::span<const std::byte> decision_bytes() const {
    return bytes.first(static_cast<size_t>(sampled_ids - bytes.data()));
  }
  uint64_t end() const { return uint64_t{header.first_position} + header.positions; }
};

// Bytes after a block that vector loads may read. They must be allocated for every block that
// backends read; their values don't matter.
inline constexpr size_t kBlockSlack = 64;

// A unique name of a block in memory. Names are never reused, so a backend may keep its copy of a
// freed block until it needs the space. Thread-safe.
class BlockTag {
 public:
  BlockTag() : name_(1 + names_.fetch_add(1, std::memory_order_relaxed)) {}
  BlockTag(const BlockTag&) = delete;
  BlockTag& operator=(const BlockTag&) = delete;

  uint64_t name() const { return name_; }

  // Hints for the backend that reads the block. Wrong hints only cost time. The last location of
  // its copy:
  uint64_t location() const { return location_.load(std::memory_order_relaxed); }
  void set_location(uint64_t location) const {
    location_.store(location, std::memory_order_relaxed);
  }
  // Time of the backend's last read of the block, on its own clock; 0: never.
  uint64_t last_read() const { return last_read_.load(std::memory_order_relaxed); }
  void set_last_read(uint64_t time) const { last_read_.store(time, std::memory_order_relaxed); }

 private:
  static inline std::atomic<uint64_t> names_ = 0;
  const uint64_t name_;
  mutable std::atomic<uint64_t> location_ = 0;
  mutable std::atomic<uint64_t> last_read_ = 0;
};

// n consecutive positions of a block, for decisions. The block must outlive the object.
struct BlockRange {
  BlockEncoding encoding;
  const std::byte* log_probs;                // float or uint16_t [used_slots]
  std::span<const uint8_t> multipliers;      // [n] with kFixed16, else empty
  std::span<const uint8_t> ranks;            // [n]
  std::span<const float> sampled_log_probs;  // [n]
  std::span<const uint8_t> counts;           // [n]
  size_t used_slots;                         // the sum of counts
  // The block's decision_bytes, in which all of the above lies, and its tag. Null: no backend may
  // keep a copy.
  std::span<const std::byte> block;
  const BlockTag* tag;

  // The positions [first, first + count) of the block, at most all of them.
  BlockRange(const BlockView& block, uint32_t first, uint32_t count, const BlockTag* tag = nullptr);

  size_t size() const { return counts.size(); }
  // The behaviour log-prob of position i in slot `used`, an index into the used slots of the whole
  // range.
  float LogProbAt(size_t i, size_t used) const;
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

// Checks header, lengths, padding, counts and, with `checksums`, the checksums. Returns
// InvalidArgument, naming the field and its value, if one is wrong.
absl::StatusOr<BlockView> OpenBlock(std::span<const std::byte> bytes, bool checksums);

// Writes both checksums into the block, whose header and parts are complete.
void SealBlock(std::span<std::byte> block);

}  // namespace sis
