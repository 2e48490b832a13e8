// What outlives the memory of a server: sequences of immutable blocks, runs, and totals of steps.
//
// A stored sequence is a set of parts: blocks, which don't overlap, gaps, and at most one seal. The
// order in which parts were written doesn't matter.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sis {

// run_id and id have at most 256 bytes each.
struct SequenceIdentity {
  std::string run_id;
  uint64_t incarnation = 0;
  std::string id;
  uint32_t attempt = 0;

  friend auto operator<=>(const SequenceIdentity&, const SequenceIdentity&) = default;
};

// "sequence 'a' attempt 0 of run 'r' incarnation 1", for messages.
std::string ToString(const SequenceIdentity& sequence);

struct StoredPart {
  enum class Kind : uint8_t { kBlock = 1, kGap = 2, kSeal = 3 };
  Kind kind = Kind::kBlock;
  // The first position of a block or gap; the length that a seal names.
  uint32_t position = 0;
  // The number of positions of a block or gap; 0 for a seal.
  uint32_t count = 0;
  // A block's bytes (docs/record_block.md); a gap's v1::MissingReason, one byte; a seal's
  // annotation, a serialised v1::Annotation, or nothing. Stores don't look into them.
  std::string bytes = {};

  friend bool operator==(const StoredPart&, const StoredPart&) = default;
};

struct StoredSequence {
  // Gaps first, then blocks by position, then the seal.
  std::vector<StoredPart> parts = {};
  // Set, with no parts, if the sequence was dropped: a v1::MissingReason.
  std::optional<uint8_t> dropped = {};
};

struct DroppedSequence {
  SequenceIdentity sequence;
  // A v1::MissingReason.
  uint8_t reason = 0;
};

struct StoredRun {
  std::string run_id = {};
  uint64_t incarnation = 0;
  uint64_t policy_version = 0;
  // A serialised v1::RunConfig; empty if this incarnation was deleted, and all before it.
  std::string config = {};

  bool deleted() const { return config.empty(); }

  friend bool operator==(const StoredRun&, const StoredRun&) = default;
};

struct ListedRuns {
  std::vector<StoredRun> runs = {};
  // The ids of runs whose record can't be read, and why.
  std::vector<std::pair<std::string, absl::Status>> unreadable = {};
};

// Thread-safe. Every call may wait for a disk or a network, at most for the time that the store was
// opened with: hold no lock that others wait for.
//
// Errors, wherever a Status is: Unavailable if the store can't be reached or fails (a write may
// have been done), DataLoss if what is stored is damaged, ResourceExhausted if there is no space.
class Store {
 public:
  virtual ~Store() = default;

  // Whether other servers write to it too.
  virtual bool shared() const = 0;

  // OK, or why nothing can be put at present. Must be called now and then: a store that was full
  // takes parts again only after such a call.
  virtual absl::Status CanPut() = 0;

  // Writes parts of one sequence, all or none, and keeps the sequence until `expires` at least. A
  // block that is stored already, byte for byte, stays; a gap stays; a seal takes the place of the
  // one before. AlreadyExists, and nothing is written, if a block overlaps a stored block that is
  // not the same: Load what is there, and put only what is new. FailedPrecondition if the sequence
  // was dropped, or is sealed at another length.
  virtual absl::Status Put(const SequenceIdentity& sequence, std::span<const StoredPart> parts,
                           absl::Time expires) = 0;

  // Writes blocks, all or none, each in the place of the stored blocks inside its range.
  // AlreadyExists if a stored block lies partly inside; FailedPrecondition if the sequence was
  // dropped.
  virtual absl::Status Merge(const SequenceIdentity& sequence, std::span<const StoredPart> blocks,
                             absl::Time expires) = 0;

  // NotFound if nothing is stored.
  virtual absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) = 0;

  // Removes the parts of the sequences, whether or not there are any, and keeps the reasons until
  // `expires`: until then nothing more is written to them. The first reason stays. Returns for each
  // whether it had parts. After an error some may have been dropped.
  virtual absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                                 absl::Time expires) = 0;

  // Of two records of a run the one with the larger (incarnation, deleted, policy_version) stays.
  // A record that can't be read is replaced. Returns the record that is there afterwards. The
  // record of a deleted run is kept for 30 days.
  virtual absl::StatusOr<StoredRun> PutRun(const StoredRun& run) = 0;
  // NotFound if there is none.
  virtual absl::StatusOr<StoredRun> GetRun(const std::string& run_id) = 0;
  virtual absl::StatusOr<ListedRuns> ListRuns() = 0;
  // Removes the sequences and steps of the run's incarnations [first, last), now or behind.
  virtual absl::Status DropIncarnations(const std::string& run_id, uint64_t first,
                                        uint64_t last) = 0;

  // Writes totals of steps of an incarnation, all or none, over those in the same slots. The store
  // doesn't read the payloads. Each server has steps of its own: a store that is shared keeps those
  // of this server apart.
  virtual absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                                const std::map<uint16_t, std::string>& by_slot) = 0;
  // Returns the payloads of all steps of the incarnation, or DataLoss in their place.
  virtual absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(
      const std::string& run_id, uint64_t incarnation) = 0;
};

}  // namespace sis
