// Where sequences live beyond the memory of one server, so that a restart or another replica finds
// them again.
//
// A stored sequence is a log of entries numbered 0, 1, 2, ..., each written once; replaying it
// gives the sequence. Several replicas may write one sequence: who finds a number taken reads what
// stands there, applies it, and goes on with the next. A sequence may be stored as one piece (its
// whole form) that stands for all entries before a number; entries from there on still count.
// docs/adr/0010-a-stored-sequence-is-a-log.md says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sis {

// At most 256 bytes each: run_id and id.
struct SequenceIdentity {
  std::string run_id;
  uint64_t incarnation = 0;
  std::string id;
  uint32_t attempt = 0;

  friend auto operator<=>(const SequenceIdentity&, const SequenceIdentity&) = default;
};

// "sequence 'a' attempt 0 of run 'r' incarnation 1", for messages.
std::string ToString(const SequenceIdentity& sequence);

struct LogEntry {
  enum class Kind : uint8_t { kBlock = 1, kTruncate = 2, kSeal = 3 };
  Kind kind = Kind::kBlock;
  // Of a block the first position, else the length that is left or sealed.
  uint32_t position = 0;
  // Of a block, else 0.
  uint64_t policy_version = 0;
  // Of a block, else empty. The store doesn't look into them. At most kMaxRowBytes.
  std::string rows = {};
  // Unique, chosen by the writer, who recognises by it an entry that was stored although the answer
  // was lost.
  uint64_t mark = 0;

  friend bool operator==(const LogEntry&, const LogEntry&) = default;
};

// A memcached item holds 1 MiB with its key; callers split longer blocks between rows.
inline constexpr size_t kMaxRowBytes = size_t{512} << 10;

struct NewEntry {
  SequenceIdentity sequence;
  uint32_t number = 0;
  LogEntry entry = {};
  // When the store may forget it.
  absl::Time expires = absl::InfiniteFuture();
};

struct StoredSequence {
  // Stands for the entries before first_entry; absent if they are all in the log.
  std::optional<std::string> whole_form = {};
  // The number of entries[0].
  uint32_t first_entry = 0;
  std::vector<LogEntry> entries = {};
  // Set, with nothing else, if the sequence was dropped: a v1::MissingReason.
  std::optional<uint8_t> dropped = {};
};

struct DroppedSequence {
  SequenceIdentity sequence;
  // A v1::MissingReason.
  uint8_t reason = 0;
};

// A lease that one of several servers has granted.
struct LeaseIdentity {
  std::string run_id;
  uint64_t incarnation = 0;
  uint64_t id = 0;
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

// What can be listed of runs.
struct ListedRuns {
  std::vector<StoredRun> runs = {};
  // Of those whose record can't be read the ids, and why.
  std::vector<std::pair<std::string, absl::Status>> unreadable = {};
};

// Thread-safe. Every call may block on a disk or a network: hold no lock that others wait for.
//
// Errors, wherever a Status is: Unavailable if what is asked for lies on a node that doesn't answer
// (nothing is known then: a write may have been done), DataLoss if it is damaged: not as it was
// written, or lost by a store that forgets nothing; ResourceExhausted if the store has lost it for
// want of room, or has no room for it.
class SequenceStore {
 public:
  virtual ~SequenceStore() = default;

  // "rocksdb", "memcached", for messages and metrics.
  virtual std::string_view name() const = 0;
  // Whether other processes may write to it at the same time.
  virtual bool shared() const = 0;

  // OK, or why nothing can be appended at present: ResourceExhausted. To be called now and then;
  // makes the store go on once there is room again.
  virtual absl::Status CanAppend() { return absl::OkStatus(); }

  // From `end` on (SteadyNow's), which only comes nearer, nothing is waited for: Unavailable.
  // Others, which wait for nobody, do nothing.
  virtual void EndWaits(absl::Time) {}

  // Adds each entry unless its number is taken. Of one sequence, numbers must be consecutive and in
  // order; after the first that fails the rest get its status and are not written, so that a log
  // has no holes. One status per entry: AlreadyExists if the number is taken or a whole form
  // stands for it, FailedPrecondition if the sequence was dropped, InvalidArgument beyond
  // kMaxRowBytes.
  virtual std::vector<absl::Status> Append(std::span<const NewEntry> entries) = 0;

  // The entries from `first` on, and the whole form if it stands for any of them. NotFound if
  // nothing was ever stored. No entries beyond the last is no error, for `first` > 0.
  virtual absl::StatusOr<StoredSequence> Read(const SequenceIdentity& sequence,
                                              uint32_t first = 0) = 0;

  // Writes a whole form, which stands for the entries before `entries`, then removes those. Does
  // nothing if one is there that stands for as many. FailedPrecondition if the sequence was
  // dropped.
  virtual absl::Status WriteWholeForm(const SequenceIdentity& sequence, uint32_t entries,
                                      std::string_view whole_form, absl::Time expires) = 0;

  // Whether there is anything to drop: it is stored, or was and is lost.
  virtual absl::StatusOr<bool> Has(const SequenceIdentity& sequence) = 0;
  // Says that the sequences are dropped, whether or not anything of them is stored. From then on
  // only the reason is read, and nothing more is written. The first reason stays. One status per
  // sequence.
  virtual std::vector<absl::Status> Drop(std::span<const DroppedSequence> sequences) = 0;
  // Of each sequence why it was dropped; nothing if it wasn't.
  virtual std::vector<absl::StatusOr<std::optional<uint8_t>>> WhyDropped(
      std::span<const SequenceIdentity> sequences) = 0;
  // Removes everything of a dropped sequence but the reason, which is kept until `expires`. What
  // isn't dropped, or was removed before, stays as it is.
  virtual absl::Status RemoveDropped(const SequenceIdentity& sequence, absl::Time expires) = 0;
  // Removes what is stored of the run's incarnations [first, last), where the store can find it.
  virtual absl::Status DropIncarnations(const std::string& run_id, uint64_t first,
                                        uint64_t last) = 0;

  // In a store that is shared: that leases have ended which other servers may have granted. It is
  // remembered until `expires`. One status per lease.
  virtual std::vector<absl::Status> EndLeases(std::span<const LeaseIdentity> leases,
                                              absl::Time expires) = 0;
  // Of each lease whether that was said.
  virtual std::vector<absl::StatusOr<bool>> HaveEnded(std::span<const LeaseIdentity> leases) = 0;

  // Of two records of a run the one with the larger (incarnation, deleted, policy_version) stays;
  // of one that can't be read nothing. Returns the one that is there afterwards. That of a deleted
  // run is kept for 30 days.
  virtual absl::StatusOr<StoredRun> PutRun(const StoredRun& run) = 0;
  // NotFound if there is none.
  virtual absl::StatusOr<StoredRun> GetRun(const std::string& run_id) = 0;

  // What can be listed: nothing where the store can't (memcached).
  virtual absl::StatusOr<ListedRuns> ListRuns() = 0;
  // All sequences, incarnation by incarnation: those that are present, and those that are dropped
  // but not removed yet. `enter` says whether those of this incarnation are wanted.
  virtual absl::Status ListSequences(
      const std::function<bool(const std::string& run_id, uint64_t incarnation)>& enter,
      const std::function<void(const SequenceIdentity& sequence, bool is_dropped)>& visit) = 0;
};

}  // namespace sis
