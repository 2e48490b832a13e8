// Which records are valid (docs/numerics.md, section 2). Only valid ones may be stored.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/records/record_view.h"

namespace sis {

// Where sets are cut (docs/numerics.md, section 4). What stands behind the cut may be anything.
struct MassCut {
  double mass = 0;  // in (0, 1)
  // [T]: gets how many slots stay. Empty: nothing is cut.
  std::span<uint16_t> counts = {};
};

// Checks the records of positions first_position, first_position + 1, ..., and writes the rank of
// each sampled token to ranks [T]: if sets are cut, in what stays. InvalidArgument names field,
// position and value. The arrays' lengths must agree; the records have no counts of their own.
absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, std::span<uint16_t> ranks,
                             const MassCut& cut = {});

// The same on vectors: at the speed of evaluating them, but without a reason. True if the records
// are valid, with the rank of each sampled token in ranks [T]. False if not, and always for a few
// positions and on machines without vectors; ranks and counts may then hold anything. Lengths must
// agree.
bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                std::span<uint16_t> ranks, const MassCut& cut = {});

}  // namespace sis
