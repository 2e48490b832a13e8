// What the store has of a sequence in memory, and what it is still to get.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/cache/backing_store.h"
#include "server/cache/run.h"
#include "server/cache/sequence.h"
#include "server/store/stored_sequence.h"
#include "server/threads/mutex.h"

namespace sis {

// Both locks come before those of Run and Sequence; `writing` is held while the store is waited
// for, so only by threads that may wait.
struct SequenceLog final : BackingStore::Attachment {
  Mutex writing;
  // All entries of the stored log before this are applied in memory.
  uint32_t next ABSL_GUARDED_BY(writing) = 0;
  // What reading the stored log takes: its entries behind the whole form, on the heap.
  int64_t bytes ABSL_GUARDED_BY(writing) = 0;

  // Held while a change is made in memory and noted, so that both are in the same order.
  Mutex order ABSL_ACQUIRED_AFTER(writing);
  // Changes made in memory that are not stored yet, and so not acked.
  std::vector<LogEntry> unwritten ABSL_GUARDED_BY(order);
};

inline int64_t HeapBytes(const LogEntry& entry) {
  return static_cast<int64_t>(sizeof(entry) + entry.payload.capacity());
}

inline SequenceIdentity IdentityOf(const Run& run, const SequenceName& name) {
  return {run.id(), run.incarnation(), name.id, name.attempt};
}

// Of a sequence of a run whose backing store is a StoredCache.
inline SequenceLog& LogOf(const Sequence& sequence) {
  return static_cast<SequenceLog&>(*sequence.attachment());
}

}  // namespace sis
