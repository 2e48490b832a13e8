// Random records for tests that send them many times, and what each is once it is recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/block/block.h"
#include "server/cache/run.h"
#include "server/testing/record_generator.h"

namespace sis {

class RecordPool {
 public:
  // Rows [0, rows), and for each a twin, row + rows. The twin differs in one value, or in a value
  // that rounding makes equal, or not at all.
  RecordPool(const v1::RunConfig& config, uint32_t rows, uint32_t seed);

  uint32_t Twin(uint32_t row) const { return row + rows_; }
  // Whether two rows are the same once recorded.
  bool Same(uint32_t a, uint32_t b) const { return contents_[a] == contents_[b]; }

  // These rows as a block of the sequence.
  v1::AppendEntry Block(const SequenceName& name, uint32_t first_position, uint64_t policy_version,
                        std::span<const uint32_t> rows) const;
  // Returns the records as they are stored.
  const Records& recorded() const { return recorded_; }
  // Returns a recorded row, for backends.
  BlockRange Behavior(uint32_t row) const {
    return BlockRange(*OpenBlock(packed_[row], false), 0, 1);
  }
  // The addend of a recorded row to the digest of its sequence.
  uint64_t Digest(uint32_t row, uint32_t position) const;
  // Returns current values that a trainer may send for the recorded rows.
  const CurrentValues& current() const { return current_; }

 private:
  void AddTwin(uint32_t row);
  // Packs the rows that were sent since, and reads them back.
  void Record();

  const v1::RunConfig config_;
  const uint32_t rows_;
  Records sent_;
  std::vector<std::vector<std::byte>> packed_;  // a block of position 0 for each row
  Records recorded_;
  CurrentValues current_;
  std::vector<size_t> contents_;  // equal numbers are equal recorded rows
};

}  // namespace sis
