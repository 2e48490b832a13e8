// One sequence of a run, with its use and its place in the run's indexes.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "server/cache/byte_budget.h"
#include "server/cache/sequence.h"
#include "server/cache/sequence_name.h"

namespace sis {

// A sequence, with the budget of its own bytes and of its entries in indexes.
struct HeldSequence {
  // `base_bytes` must have been charged to the run.
  HeldSequence(ByteBudget& run_budget, int64_t base_bytes, uint64_t key,
               std::unique_ptr<BackingStore::Attachment> attachment)
      : bytes(std::numeric_limits<int64_t>::max(), &run_budget, base_bytes),
        sequence(key, bytes, std::move(attachment)) {}
  ByteBudget bytes;
  Sequence sequence;
};

// Guarded by its run's lock.
struct Member {
  // Its list in Members.
  enum class Place : uint8_t {
    kRead,
    kUnread,  // kept by its run until it has been read
    kInUse,   // deferred, because it was in use when its turn to be evicted came
    kKept,    // kept by a reader until a deadline
  };
  // Its place in VersionIndex.
  enum class InVersionIndex : uint8_t { kNowhere, kUnchecked, kByVersion };

  // Only Run gives out references, under its lock.
  bool in_use() const { return held.use_count() > 1; }
  bool kept() const { return place == Place::kKept; }
  // Returns true if nobody reads, writes or keeps it.
  bool idle() const { return !kept() && !in_use(); }
  Sequence& sequence() const { return held->sequence; }
  std::shared_ptr<Sequence> shared() const { return {held, &held->sequence}; }

  std::shared_ptr<HeldSequence> held;
  absl::Time last_used;
  Place place;
  InVersionIndex in_version_index = InVersionIndex::kNowhere;
  bool unread = true;
  int64_t deadline = 0;  // seconds since 1970; kKept only
  uint64_t version_index_key = 0;
  std::list<Member>::iterator here;  // in its list
  SequenceName name;
};

}  // namespace sis
