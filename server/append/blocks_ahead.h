// Blocks of the entries to come, appended before their turn, in which idle workers help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "server/append/block_reader.h"
#include "server/append/room_queue.h"
#include "server/cache/run.h"
#include "server/memory/byte_budget.h"
#include "server/shared_memory/shared_segment.h"
#include "server/threads/worker_pool.h"
#include "server/wire/append_request.h"

namespace sis {

struct StoredBlock {
  Sequence::Appended appended;
  int64_t bytes;  // of its arrays
};

// What comes of a message is what comes of its entries one by one. So only that is done ahead which
// depends on no other sequence: the blocks of each, in order, up to the first entry that is no
// block, or would be refused, or finds no room. That one and those after it wait for their turn.
// Used by one thread at a time.
class BlocksAhead {
 public:
  // A worker is worth waking up for so many slots of positions: some tenth of a millisecond.
  static constexpr size_t kLaneSlots = 1 << 15;
  // After so many, other runs have their turn at the workers.
  static constexpr size_t kPieceSlots = 1 << 20;
  static constexpr size_t kPieceEntries = 256;
  // Where the first entries have fewer, as of engines that append a token at a time, the others of
  // the piece are not looked at.
  static constexpr size_t kFirstEntries = 8;
  static constexpr size_t kFirstSlots = kFirstEntries * 2 * kLaneSlots / kPieceEntries;

  // All must outlive the object. Without workers (null) nothing is done ahead.
  BlocksAhead(std::shared_ptr<Run> run, const ByteBudget& server_budget,
              const RoomQueue& room_queue, WorkerPool* workers)
      : run_(std::move(run)),
        server_budget_(&server_budget),
        room_queue_(&room_queue),
        workers_(workers) {}

  // Once all that was done ahead has had its turn, appends the blocks of the next piece, if that
  // pays: of `entries`, which begin with the next one. Arrays lie in `segment`, or in the message
  // if it is null.
  void Prepare(std::span<const AppendEntryView> entries, const SharedSegment* segment) {
    if (workers_ != nullptr && next_ >= end_) BeginPiece(entries, segment);
  }
  // The next entry, if it is stored; else null.
  const StoredBlock* next() const {
    return next_ < stored_.size() && stored_[next_].has_value() ? &*stored_[next_] : nullptr;
  }
  // Goes on to the entry after the next.
  void Advance() { ++next_; }
  // The next entry is of another message.
  void Forget() {
    next_ = end_ = 0;
    std::vector<std::optional<StoredBlock>>().swap(stored_);
  }

 private:
  void BeginPiece(std::span<const AppendEntryView> entries, const SharedSegment* segment);
  bool RoomIsAmple(std::span<const AppendEntryView> piece, const SharedSegment* segment) const;

  std::shared_ptr<Run> run_;
  const ByteBudget* server_budget_;
  const RoomQueue* room_queue_;
  WorkerPool* workers_;
  size_t next_ = 0;
  size_t end_ = 0;                                  // of the piece
  std::vector<std::optional<StoredBlock>> stored_;  // of the piece, if any are
};

}  // namespace sis
