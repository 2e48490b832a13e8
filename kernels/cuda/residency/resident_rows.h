// Which rows have a copy in memory of the device, and where: bookkeeping only, which copies and
// reads nothing (docs/adr/0020-rows-stay-on-the-device.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/decide/backend.h"
#include "kernels/records/fixed_rows.h"

namespace sis::cuda {

// The device's memory for copies, taken at start.
class ResidentMemory {
 public:
  virtual ~ResidentMemory() = default;

  // Only the device may read or write it. Aligned as rows are.
  virtual std::byte* data() = 0;
  virtual size_t size() const = 0;

  // These bytes will be written before a batch reads them again.
  virtual void Discard(size_t /*offset*/, size_t /*bytes*/) {}
};

// Copies of one size are given memory slab by slab. The slab that was least recently read is
// taken back as a whole, as pages that are copied one after the other are read in that order too.
//
// Thread-safe. Takes one short lock per page of a batch, and none while bytes are copied or read.
class ResidentRows {
 public:
  static constexpr size_t kSlabBytes = size_t{1} << 20;
  // Where copies begin: a line of the device's cache.
  static constexpr size_t kAlignment = 128;

  // What copies take.
  static constexpr size_t CellBytes(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Uses the whole slabs of the memory, which must outlive it.
  explicit ResidentRows(ResidentMemory& memory, size_t slab_bytes = kSlabBytes);
  ResidentRows(const ResidentRows&) = delete;
  ResidentRows& operator=(const ResidentRows&) = delete;

  ResidentRowsStats stats() const;

  class Use;

 private:
  struct Cell {
    uint64_t name;   // 0: nothing
    uint64_t maker;  // the batch that writes it; 0: it is written, for all to read
  };
  struct Slab {
    size_t cell_bytes = 0;
    std::vector<Cell> cells;  // handed out so far
    int pins = 0;             // batches in flight that read it or write to it
    uint64_t last_read = 0;
    std::list<uint32_t>::iterator by_age;
  };
  struct Location {
    uint32_t slab;
    uint32_t cell;
  };

  size_t OffsetOf(const Location& location) const {
    return location.slab * slab_bytes_ + location.cell * slabs_[location.slab].cell_bytes;
  }
  // All under mutex_.
  std::optional<Location> FindLocation(const RowsTag& tag) const;
  // Room for a copy of rows that have none, with nothing there yet.
  std::optional<Location> MakeRoom(const FixedRows& rows);
  // An unused slab, or one that is taken from copies which these rows may replace.
  std::optional<uint32_t> TakeChunk(const RowsTag& tag);

  ResidentMemory& memory_;
  const size_t slab_bytes_;

  mutable std::mutex mutex_;
  // All below is guarded by mutex_.
  uint64_t clock_ = 0;    // counts what was looked for
  uint64_t batches_ = 0;  // numbers them
  std::vector<Slab> slabs_;
  std::vector<uint32_t> unused_;
  std::list<uint32_t> by_age_;                    // in use, the least recently read first
  std::unordered_map<size_t, uint32_t> filling_;  // size of a cell -> slab that has room
  ResidentRowsStats stats_;
};

// The copies that a batch reads or makes; one batch after the other. For one thread at a time.
//
// Until Done, when the device has been waited for, a copy is for the batch alone that makes it: so
// no batch reads what another's stream may not have written yet. What a batch reads stays in place
// until Done.
class ResidentRows::Use {
 public:
  // Null: keeps nothing.
  explicit Use(ResidentRows* rows) : resident_(rows) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // The offset of a copy in the memory, if there is one or, with `make`, this batch can make one.
  std::optional<size_t> Find(const FixedRows& rows, bool make);

  // To be made before the batch runs.
  struct Copy {
    std::span<const std::byte> from;
    size_t to;
  };
  std::span<const Copy> copies() const { return copies_; }

  // The batch has been waited for, without an error.
  void Done();
  // The batch failed, and the device may still be at work: what it made and read is never found
  // again, and its memory is never given to others.
  void Abandon();

 private:
  ResidentRows* const resident_;
  uint64_t batch_ = 0;  // 0: has looked for nothing yet
  std::vector<Copy> copies_;
  std::vector<Location> made_;    // one for each
  std::vector<uint32_t> pinned_;  // slabs, once for each time
  uint64_t passed_ = 0;           // the rows that were last looked for, in vain
};

}  // namespace sis::cuda
