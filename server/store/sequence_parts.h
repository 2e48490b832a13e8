// The unwritten changes of a sequence in memory, and its stored blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/cache/backing_store.h"
#include "server/cache/run.h"
#include "server/cache/sequence.h"
#include "server/store/store.h"
#include "server/threads/mutex.h"

namespace sis {

// Both locks come before those of Run and Sequence. `writing` is held during calls of the store, so
// only threads that may wait may take it.
struct SequenceParts final : BackingStore::Attachment {
  Mutex writing;
  // First position and number of positions of the stored blocks of `revision`.
  std::map<uint32_t, uint32_t> stored_blocks ABSL_GUARDED_BY(writing);
  // Positions in small blocks that were stored since the last merge.
  uint32_t small_positions ABSL_GUARDED_BY(writing) = 0;
  // Store::Revision of the stored parts that memory has.
  uint64_t revision ABSL_GUARDED_BY(writing) = 0;
  // True if another server may have released or sealed the sequence: the next read asks the store.
  std::atomic<bool> changed_elsewhere = false;

  // Held while a change is made in memory and noted below, so that no thread sees only one of both.
  Mutex order ABSL_ACQUIRED_AFTER(writing);
  // Changes made in memory that are not stored yet, and so not acked.
  std::vector<StoredPart> unwritten ABSL_GUARDED_BY(order);
};

inline SequenceIdentity IdentityOf(const Run& run, const SequenceName& name) {
  return {run.id(), run.incarnation(), name.id, name.attempt};
}

// Returns the parts of a sequence. Its run's backing store must be a StoredCache.
inline SequenceParts& PartsOf(const Sequence& sequence) {
  return static_cast<SequenceParts&>(*sequence.attachment());
}

}  // namespace sis
