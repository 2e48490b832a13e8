// What a run needs of a store that outlives the server's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "server/cache/missing.h"
#include "server/cache/sequence_name.h"

namespace sis {

class Run;
class Sequence;

// A sequence, or why there is none.
using FoundSequence = std::variant<std::shared_ptr<Sequence>, MissingReason>;

// Thread-safe. Must outlive the calls of its runs.
class BackingStore {
 public:
  // What the store remembers of a sequence for as long as that is in memory.
  class Attachment {
   public:
    virtual ~Attachment() = default;
  };

  virtual ~BackingStore() = default;

  // Whether other servers write to it too: what this one has in memory may be a part only.
  virtual bool shared() const { return false; }

  // For a new sequence.
  virtual std::unique_ptr<Attachment> Attach() = 0;
  // Charged for it.
  static constexpr int64_t kAttachmentBytes = 240;

  // Returns a sequence for reading: from memory, or else from the store. May wait for the store, so
  // the caller must hold no lock.
  virtual FoundSequence Find(Run& run, const SequenceName& name) = 0;

  // Drops a stored sequence that is dropped from memory, later, and until it succeeds: doesn't
  // wait, and is called under the run's lock. One that has expired or is stale stays in a shared
  // store if that has it otherwise.
  virtual void DropBehind(const Run& run, const SequenceName& name, MissingReason reason) = 0;
};

}  // namespace sis
