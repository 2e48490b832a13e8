// What a sequence in memory has still to store, and how its blocks are stored.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/cache/backing_store.h"
#include "server/cache/run.h"
#include "server/cache/sequence.h"
#include "server/store/store.h"
#include "server/threads/mutex.h"

namespace sis {

// Both locks come before those of Run and Sequence; `writing` is held while the store is waited
// for, so only by threads that may wait.
struct SequenceParts final : BackingStore::Attachment {
  Mutex writing;
  // The first positions of the stored blocks, as far as this server knows, in order.
  std::vector<uint32_t> stored_blocks ABSL_GUARDED_BY(writing);
  // In small blocks that were stored since blocks were merged last.
  uint32_t small_positions ABSL_GUARDED_BY(writing) = 0;
  // The store may have what memory doesn't: it is looked at before the next write.
  bool look_first ABSL_GUARDED_BY(writing) = true;

  // Held while a change is made in memory and noted: who finds it made finds it noted.
  Mutex order ABSL_ACQUIRED_AFTER(writing);
  // Changes made in memory that are not stored yet, and so not acked.
  std::vector<StoredPart> unwritten ABSL_GUARDED_BY(order);
};

inline SequenceIdentity IdentityOf(const Run& run, const SequenceName& name) {
  return {run.id(), run.incarnation(), name.id, name.attempt};
}

// Of a sequence of a run whose backing store is a StoredCache.
inline SequenceParts& PartsOf(const Sequence& sequence) {
  return static_cast<SequenceParts&>(*sequence.attachment());
}

}  // namespace sis
