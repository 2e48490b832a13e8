// The first bytes of a page, and the places in it that writing and reading share
// (docs/page_format.md).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/page/encoded_page.h"
#include "kernels/records/packed_row.h"

namespace sis {

static_assert(std::endian::native == std::endian::little,
              "pages are little-endian, as they lie in memory");

inline constexpr uint32_t kPageMagic = 0x50534953;  // "SISP"

struct PageHeaderBytes {
  uint32_t magic;
  uint32_t crc32c;  // of all bytes after it
  uint8_t version;
  uint8_t encoding;
  uint16_t slots;
  int32_t vocabulary_size;
  uint32_t first_position;
  uint32_t positions;
  // Of ragged pages; else 0.
  uint32_t used_slots;
  uint32_t outside;
};
static_assert(sizeof(PageHeaderBytes) == 32);

// Where the bytes under the checksum begin.
inline constexpr size_t kChecksummedFrom = offsetof(PageHeaderBytes, version);

// Rows of a group of ids: the sampled ones, then rank by rank.
constexpr size_t IdRows(const PageHeader& header) { return 1 + header.slots; }

constexpr size_t IdGroupBytes(const PageHeader& header) {
  return IdRows(header) * PackedRowBytes(IdBits(header.vocabulary_size));
}

// The widths of values in ragged pages.
constexpr int RaggedCountBits(int slots) { return std::bit_width(static_cast<uint32_t>(slots)); }
constexpr int RaggedRankBits(int slots) { return std::bit_width(static_cast<uint32_t>(slots) + 1); }

// Ranks in ragged pages: slots come first.
constexpr uint32_t RaggedRankOutside(int slots) { return static_cast<uint32_t>(slots); }
constexpr uint32_t RaggedRankAbsent(int slots) { return static_cast<uint32_t>(slots) + 1; }

}  // namespace sis
