// Pages of version 2: positions hold as many slots as their sets have, group by group of 16
// positions, rank by rank, in each rank the positions that have that slot (docs/page_format.md).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/encoding.h"
#include "kernels/records/record_view.h"

namespace sis {

// How many slots each position of a group uses: at most kMaxTopK.
using GroupCounts = std::array<uint16_t, kGroupPositions>;

// Calls visit(lane, rank) slot by slot.
template <class Visitor>
void VisitRaggedSlots(const GroupCounts& counts, const Visitor& visit) {
  std::array<uint16_t, kMaxTopK + 1> ending;  // lanes by their count
  constexpr size_t kFew = 256;
  std::fill_n(ending.begin(), kFew, uint16_t{0});
  uint32_t bits = 0;
  for (const uint16_t count : counts) bits |= count;
  if (bits >= kFew) std::fill(ending.begin() + kFew, ending.end(), uint16_t{0});
  for (size_t lane = 0; lane < kGroupPositions; ++lane) {
    ending[counts[lane]] |= static_cast<uint16_t>(1u << lane);
  }
  uint32_t lanes = 0xFFFFu & ~uint32_t{ending[0]};
  for (size_t rank = 0; lanes != 0; lanes &= ~uint32_t{ending[++rank]}) {
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
      visit(static_cast<size_t>(std::countr_zero(left)), rank);
    }
  }
}

// Writes all sections. The header must be what HeaderOf makes of the records; the rest is as for
// EncodePage.
void EncodeRaggedSections(const PageHeader& header, const RecordView& records,
                          std::span<const uint16_t> ranks, std::span<std::byte> page,
                          std::span<float> rounded_log_probs);

// DataLoss unless counts and ranks agree with the header: nothing else tells where a slot is.
absl::Status CheckRaggedCounts(const PageView& page);

void ReadRaggedRecords(const PageView& page, uint32_t first, const RecordRows& rows);

}  // namespace sis
