// A model of the cache on plain maps, with which random operations are compared.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/decide/backend.h"
#include "server/cache/run.h"
#include "tests/integration/record_pool.h"

namespace sis {

// Models one run. Called by one thread. Its functions have the names and arguments of the cache's,
// must be called in the same order, and return what the cache must return.
//
// Which sequences are evicted depends on bytes, which the model doesn't count, so Settle asks the
// cache. The model checks that they are the least recently used ones that nobody holds, those that
// have been read first.
class CacheModel {
 public:
  // With a durable store, what leaves memory can be read again, and outlives a restart.
  CacheModel(const RecordPool& pool, const v1::RunConfig& config, bool durable);

  // The time on the cache's clock.
  void SetTime(absl::Time now) { now_ = now; }

  // Rows of the pool at first_position, ... .
  absl::StatusCode Append(const SequenceName& name, uint32_t first_position,
                          uint64_t policy_version, std::span<const uint32_t> rows);
  // Appends a block with a wrong checksum.
  absl::StatusCode AppendInvalid(const SequenceName& name);
  absl::StatusCode Seal(const SequenceName& name, uint32_t length);
  // Every batch of entries does this first, for each of its sequences.
  void BringIn(const SequenceName& name);
  // Returns the committed length that acks must have.
  uint32_t CommittedLength(const SequenceName& name) const;

  // The slices of a FetchTopK, without their blocks.
  std::vector<v1::FetchedSlice> Fetch(const v1::FetchTopKRequest& request);
  // Evaluates for a draw without earlier evaluations.
  absl::StatusOr<v1::EvaluateResponse> Evaluate(const v1::EvaluateRequest& request);

  bool Release(const SequenceName& name);
  // Returns the number of dropped sequences, or nullopt if the call is refused.
  std::optional<int64_t> AdvanceVersion(uint64_t version);
  void DropExpired();
  // Whether DropExpired would drop anything.
  bool Overdue() const;
  void OpenIncarnation();
  void Restart();

  // After a call: takes over which sequences the cache has evicted, and whether it has dropped what
  // is overdue to make room. Returns what is wrong with that, if anything is. `used` are the
  // sequences that the call named.
  std::optional<std::string> Settle(const Run& run, const std::set<SequenceName>& used);
  // How many sequences the last Settle found evicted.
  int evicted() const { return evicted_; }
  // Compares what GetRun says; empty if it agrees.
  std::string Compare(const v1::Run& described) const;

  // For the choice of operations.
  uint64_t policy_version() const { return policy_version_; }
  size_t kept() const { return deadlines_.size(); }
  uint64_t Digest(const SequenceName& name, uint32_t first, uint32_t count) const {
    return Digest(name, first, count, OldestFreshVersion());
  }
  // One past the last position, in memory or not.
  uint32_t Length(const SequenceName& name) const;
  struct Recorded {
    uint32_t row;  // of the pool
    uint64_t version;
    uint64_t digest;
  };
  std::optional<Recorded> At(const SequenceName& name, uint32_t position) const;
  // Bytes of sequences that are not kept until a deadline, as the cache counts them.
  int64_t BytesNotKept(const Run& run) const;

 private:
  using Deadlines = std::multimap<absl::Time, SequenceName>;
  struct Sequence {
    std::map<uint32_t, Recorded> positions;
    std::optional<uint32_t> sealed;
    bool stored = false;  // the store knows it
    // Why it is gone, as this life of the server knows it and as the store knows it.
    std::optional<v1::MissingReason> dropped;
    std::optional<v1::MissingReason> stored_reason;

    bool in_memory = false;
    // While in memory:
    absl::Time last_used;
    std::optional<Deadlines::iterator> deadline;
    bool unread = true;
    std::list<SequenceName>::iterator by_age;
  };

  static uint32_t LengthOf(const Sequence& sequence) {
    return sequence.positions.empty() ? 0 : sequence.positions.rbegin()->first + 1;
  }
  uint64_t OldestFreshVersion() const;
  uint64_t Digest(const SequenceName& name, uint32_t first, uint32_t count,
                  uint64_t oldest_fresh) const;
  // Whether it is the digest of these, or was before some became stale.
  bool HadDigest(uint64_t digest, const SequenceName& name, uint32_t first, uint32_t count) const;
  bool IsStale(const Sequence& sequence) const;
  bool IsExpired(const Sequence& sequence) const;
  // Is evicted after the others.
  bool GoesLast(const Sequence& sequence) const;
  void Enter(const SequenceName& name);
  void Leave(Sequence& sequence);
  void Drop(Sequence& sequence, v1::MissingReason reason);
  void Use(Sequence& sequence);
  // Counts as use. Null if the sequence isn't in memory.
  Sequence* Touch(const SequenceName& name);
  // For reading: brings in what the store has. The reason if there is none.
  std::optional<v1::MissingReason> Find(const SequenceName& name);
  // For changing: makes the sequence if need be. Null if that is refused.
  Sequence* Open(const SequenceName& name);
  void ForgetIfEmpty(Sequence& sequence);
  // For FetchTopK and Evaluate.
  void Keep(const google::protobuf::RepeatedPtrField<v1::Slice>& slices, double keep_seconds);
  void ForgetDeadline(Sequence& sequence);
  bool DeadlineHasPassed() const {
    return !deadlines_.empty() && deadlines_.begin()->first <= now_;
  }
  // Why a position has no record that counts.
  std::optional<v1::MissingReason> MissingAt(const Sequence& sequence, uint32_t position) const;
  // Evaluates a recorded position by the scalar backend.
  void Score(const EvaluateParameters& parameters, const SequenceName& name, uint32_t position,
             const CurrentView& current, const OutputView& output, Sums& sums) const;

  const RecordPool& pool_;
  const v1::RunConfig config_;
  const bool durable_;
  const absl::Duration time_to_live_;
  absl::Time now_;
  uint64_t policy_version_ = 0;
  absl::node_hash_map<SequenceName, Sequence> sequences_;
  std::list<SequenceName> by_age_;  // in memory, the least recently used first
  Deadlines deadlines_;
  int evicted_ = 0;
  std::set<SequenceName> in_use_;  // by the call that Settle is looking at
};

}  // namespace sis
