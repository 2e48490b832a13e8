// The interface of durable stores of sequences, runs, and totals of steps.
//
// A stored sequence is a set of parts: blocks, gaps, and at most one seal. Stores don't interpret
// parts. A writer must know all parts of a sequence; the revision proves it.
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
#include "server/cache/version_labels.h"

namespace sis {

// run_id and id have at most 256 bytes each.
struct SequenceIdentity {
  std::string run_id;
  uint64_t incarnation = 0;
  std::string id;
  uint32_t attempt = 0;

  friend auto operator<=>(const SequenceIdentity&, const SequenceIdentity&) = default;
};

// Returns "sequence 'a' attempt 0 of run 'r' incarnation 1", for messages.
std::string ToString(const SequenceIdentity& sequence);

struct StoredPart {
  // In the order of loading.
  enum class Kind : char { kGap = 'g', kBlock = 'r', kSeal = 's' };
  Kind kind = Kind::kBlock;
  // The first position of a block or gap; the length of a seal.
  uint32_t position = 0;
  // The number of positions of a block or gap; 0 for a seal.
  uint32_t count = 0;
  // A block's bytes (docs/record_block.md); a gap's v1::MissingReason, one byte; or a seal's
  // annotation, a serialised v1::Annotation, or nothing. Opaque to stores.
  std::string bytes = {};

  friend bool operator==(const StoredPart&, const StoredPart&) = default;
};

struct StoredSequence {
  // Gaps first, then blocks by position, then the seal, then gaps (CORRUPT) for damaged blocks.
  std::vector<StoredPart> parts = {};
  // Set, with no parts, if the sequence was dropped: a v1::MissingReason.
  std::optional<uint8_t> dropped = {};
  // Store::Revision of these parts.
  uint64_t revision = 0;
};

struct SequenceChange {
  // Store::Revision of the parts that the change is made to.
  uint64_t revision = 0;
  // A part replaces the stored part of the same kind, position and count.
  std::span<const StoredPart> added;
  // Parts that go, whose bytes are not used.
  std::span<const StoredPart> removed = {};
  // The sequence is kept at least until then.
  absl::Time expires;
};

struct DroppedSequence {
  SequenceIdentity sequence;
  // A v1::MissingReason.
  uint8_t reason = 0;
  // If set, the sequence stays unless this is its revision.
  std::optional<uint64_t> revision = {};
};

struct StoredRun {
  std::string run_id = {};
  uint64_t incarnation = 0;
  uint64_t policy_version = 0;
  // A serialised v1::RunConfig; empty if this and all earlier incarnations were deleted.
  std::string config = {};
  VersionLabels labels = {};

  bool deleted() const { return config.empty(); }

  friend bool operator==(const StoredRun&, const StoredRun&) = default;
};

// Returns what is stored after PutRun(put), if `there` was stored before.
StoredRun Merged(const StoredRun& there, const StoredRun& put);

struct ListedRuns {
  std::vector<StoredRun> runs = {};
  // The ids of runs whose record can't be read, with the error.
  std::vector<std::pair<std::string, absl::Status>> unreadable = {};
};

// Thread-safe. Every call may wait for a disk or a network, at most for the timeout that the store
// was opened with. The caller must hold no lock that others wait for.
//
// Every Status may be Unavailable if the store is unreachable or fails (a write may have been
// executed), DataLoss if stored data is damaged, ResourceExhausted if there is no space.
class Store {
 public:
  virtual ~Store() = default;

  // Returns true if other servers write to the store too.
  virtual bool shared() const = 0;

  // Returns OK, or the reason why Put fails now. Must be called periodically, because only this
  // call lets a full store free the space of removed parts.
  virtual absl::Status CanPut() = 0;

  // Changes a sequence, completely or not at all. Returns its new revision. Returns Aborted if the
  // revision is another: then Load the sequence, and put what is still new.
  virtual absl::StatusOr<uint64_t> Put(const SequenceIdentity& sequence,
                                       const SequenceChange& change) = 0;

  // Returns NotFound if nothing is stored.
  virtual absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) = 0;

  // Returns a number that changes whenever the sequence does; 0 if nothing is stored.
  virtual absl::StatusOr<uint64_t> Revision(const SequenceIdentity& sequence) = 0;

  // For a shared store. Sends news to all other servers, and returns what they have sent since the
  // last call. The first call may return older news. A server that does not call for many seconds
  // may miss some.
  virtual absl::StatusOr<std::vector<std::string>> ExchangeNews(std::span<const std::string>) {
    return std::vector<std::string>();
  }

  // Removes all parts of the sequences, and keeps the reasons until `expires`. The first reason of
  // a sequence stays. Returns true for each sequence whose parts it removed. After an error some
  // may have been dropped.
  virtual absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                                 absl::Time expires) = 0;

  // Writes `run` unless the store has a record with an equal or larger (incarnation, deleted,
  // policy_version). Adds its labels in any case if the incarnation is the same; stored labels
  // stay. Replaces an unreadable record. Returns the stored record. The record of a deleted run is
  // kept for 30 days.
  virtual absl::StatusOr<StoredRun> PutRun(const StoredRun& run) = 0;
  // Returns NotFound if there is none.
  virtual absl::StatusOr<StoredRun> GetRun(const std::string& run_id) = 0;
  virtual absl::StatusOr<ListedRuns> ListRuns() = 0;
  // Removes the sequences and steps of the run's incarnations [first, last), now or in the
  // background.
  virtual absl::Status DropIncarnations(const std::string& run_id, uint64_t first,
                                        uint64_t last) = 0;

  // Writes totals of steps of an incarnation, all or none. Replaces the totals in the same slots.
  // The payloads are opaque to stores. A shared store keeps the steps of each server separately.
  virtual absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                                const std::map<uint16_t, std::string>& by_slot) = 0;
  // Returns the payloads of the incarnation's steps that this server stored, with DataLoss for
  // damaged ones.
  virtual absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(
      const std::string& run_id, uint64_t incarnation) = 0;
};

}  // namespace sis
