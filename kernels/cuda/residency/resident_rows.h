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

// Memory of the device that copies lie in, taken at start.
class ResidentMemory {
 public:
  virtual ~ResidentMemory() = default;

  // For the device, not for the host to read or write; aligned as rows are.
  virtual std::byte* data() = 0;
  virtual size_t size() const = 0;

  // No batch reads these bytes any more before it has written them.
  virtual void Discard(size_t /*offset*/, size_t /*bytes*/) {}
};

// Memory is given to copies of one size a chunk at a time, and taken back a chunk at a time, the
// one that was least recently read: pages that are copied one after the other are read so too.
//
// Thread-safe. One short lock per page of a batch, none while anything is copied or read.
class ResidentRows {
 public:
  static constexpr size_t kChunkBytes = size_t{1} << 20;
  // Where copies begin: a line of the device's cache.
  static constexpr size_t kAlignment = 128;

  // What copies take.
  static constexpr size_t BlockBytes(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Uses the whole chunks of the memory, which must outlive it.
  explicit ResidentRows(ResidentMemory& memory, size_t chunk_bytes = kChunkBytes);
  ResidentRows(const ResidentRows&) = delete;
  ResidentRows& operator=(const ResidentRows&) = delete;

  ResidentRowsStats stats() const;

  class Use;

 private:
  struct Block {
    uint64_t name;   // 0: nothing
    uint64_t maker;  // the batch that writes it; 0: it is written, for all to read
  };
  struct Chunk {
    size_t block_bytes = 0;
    std::vector<Block> blocks;  // handed out so far
    int pins = 0;               // batches in flight that read it or write to it
    uint64_t last_read = 0;
    std::list<uint32_t>::iterator by_age;
  };
  struct Place {
    uint32_t chunk;
    uint32_t block;
  };

  size_t OffsetOf(const Place& place) const {
    return place.chunk * chunk_bytes_ + place.block * chunks_[place.chunk].block_bytes;
  }
  // All under mutex_.
  std::optional<Place> FindPlace(const RowsTag& tag) const;
  // Room for a copy of rows that have none, with nothing there yet.
  std::optional<Place> MakeRoom(const FixedRows& rows);
  // An unused chunk, or one that is taken from copies which these rows may replace.
  std::optional<uint32_t> TakeChunk(const RowsTag& tag);

  ResidentMemory& memory_;
  const size_t chunk_bytes_;

  mutable std::mutex mutex_;
  // All below is guarded by mutex_.
  uint64_t clock_ = 0;    // counts what was looked for
  uint64_t batches_ = 0;  // numbers them
  std::vector<Chunk> chunks_;
  std::vector<uint32_t> unused_;
  std::list<uint32_t> by_age_;                    // in use, the least recently read first
  std::unordered_map<size_t, uint32_t> filling_;  // size of a block -> chunk that has room
  ResidentRowsStats stats_;
};

// The copies that a batch reads or makes; one batch after the other. For one thread at a time.
//
// What it makes is for its own batch alone until Done, when the device has been waited for: so no
// batch reads what another's stream may not have written yet. What it reads stays where it is until
// Done.
class ResidentRows::Use {
 public:
  // Null: keeps nothing.
  explicit Use(ResidentRows* rows) : resident_(rows) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // The offset of a copy in the memory, if there is one or, with `make`, this batch can make one.
  std::optional<size_t> Find(const FixedRows& rows, bool make);
  // As if the last Find hadn't been.
  void Withdraw();

  // To be made before the batch runs.
  struct Copy {
    std::span<const std::byte> from;
    size_t to;
  };
  std::span<const Copy> copies() const { return copies_; }

  // The batch has been waited for, without an error.
  void Done();
  // It failed, and nobody knows what the device still does: what it made and read is not to be
  // found any more, and its memory never given to others.
  void Abandon();

 private:
  // What the last Find changed.
  struct Last {
    const RowsTag* tag = nullptr;
    uint64_t name = 0;
    uint64_t read_before = 0;
    int64_t ResidentRowsStats::*counter = nullptr;
    bool made = false;
    bool found = false;
  };

  ResidentRows* const resident_;
  uint64_t batch_ = 0;  // 0: has looked for nothing yet
  std::vector<Copy> copies_;
  std::vector<Place> made_;       // one for each
  std::vector<uint32_t> pinned_;  // chunks, once for each time
  Last last_;
};

}  // namespace sis::cuda
