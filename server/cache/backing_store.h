// What a run needs of a store that outlives the server's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

  // Whether other servers use it for the same runs.
  virtual bool shared() const = 0;

  // For a new sequence.
  virtual std::unique_ptr<Attachment> Attach() = 0;
  // Charged for it, and for the sequence's place among those that other servers are asked about.
  static constexpr int64_t kAttachmentBytes = 208;

  // A sequence for reading records and these columns at [first, first + count), or all of it if
  // count is 0: from memory, and what isn't there from the store. May wait for the store, so the
  // caller holds no lock.
  virtual FoundSequence Find(Run& run, const SequenceName& name, uint32_t first, uint32_t count,
                             std::span<const uint32_t> columns) = 0;

  // Drops a stored sequence that is dropped from memory, later, and until it succeeds: doesn't
  // wait, and is called under the run's lock. In a store that is shared kStale, which only an idle
  // sequence is, takes no more than what memory had of it.
  virtual void DropBehind(const Run& run, const SequenceName& name, const Sequence& sequence,
                          MissingReason reason) = 0;
};

}  // namespace sis
