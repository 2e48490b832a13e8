// The leases of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/cache/member.h"
#include "server/memory/byte_budget.h"

namespace sis {

struct Lease {
  absl::Time expires;
  absl::Duration length;
  std::vector<Member*> members;  // one that is named several times stands there as often
  ByteCharge charge;             // of the run
};

// By id, and by when they end. Not thread-safe.
class Leases {
 public:
  // The memory of a lease, and for each of its members. A sequence's base cost covers so many
  // leases, so that those who share a sequence lease it even if there is no room at all.
  static constexpr int64_t kBytes = 256;
  static constexpr int64_t kMemberBytes = sizeof(void*);
  static constexpr int kCovered = 8;

  size_t size() const { return by_id_.size(); }
  // Returns its id, which can't be guessed: who knows it may end the lease.
  uint64_t Add(Lease lease);
  // Null if there is none, or it has ended.
  const Lease* Find(uint64_t id, absl::Time now) const;
  // From now on for its length again. It must be there.
  void Renew(uint64_t id, absl::Time now);
  // Nothing if there is none.
  std::optional<Lease> Take(uint64_t id);
  // One that has ended; nothing if none has.
  std::optional<Lease> TakeEnded(absl::Time now);
  // A member goes although it is leased.
  void Forget(const Member& member);
  void Clear();

 private:
  absl::flat_hash_map<uint64_t, Lease> by_id_;
  std::set<std::pair<absl::Time, uint64_t>> by_expiry_;
};

}  // namespace sis
