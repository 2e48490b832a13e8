// The interface of a durable store to a run.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "server/cache/missing.h"
#include "server/cache/sequence_name.h"

namespace sis {

class Run;
class Sequence;

// A sequence, or the reason why there is none.
using FoundSequence = std::variant<std::shared_ptr<Sequence>, MissingReason>;

// Thread-safe. Must outlive the calls of its runs.
class BackingStore {
 public:
  // The store's own data about a sequence while the sequence is in memory.
  class Attachment {
   public:
    virtual ~Attachment() = default;
  };

  virtual ~BackingStore() = default;

  // Returns true if other servers write to the store too. Memory may then have only a part of a
  // sequence.
  virtual bool shared() const { return false; }

  // Returns the data for a new sequence.
  virtual std::unique_ptr<Attachment> Attach() = 0;
  // Bytes charged for an attachment.
  static constexpr int64_t kAttachmentBytes = 240;

  // Returns a sequence for reading: from memory, or else from the store. May wait for the store, so
  // the caller must hold no lock.
  virtual FoundSequence Find(Run& run, const SequenceName& name) = 0;

  // Drops a stored sequence in the background, with retries, because memory drops it. Doesn't wait;
  // the caller holds the run's lock. A shared store keeps an expired or stale sequence if its own
  // data says that it is neither.
  virtual void DropBehind(const Run& run, const SequenceName& name, MissingReason reason) = 0;
  // Removes all sequences of a closed run in the background. A call that writes after the run was
  // closed must repeat this. Doesn't wait; the caller may hold the run's lock.
  virtual void DropRunBehind(const Run& run) = 0;
};

}  // namespace sis
