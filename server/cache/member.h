// One sequence of a run, and who holds it.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <variant>

#include "absl/time/time.h"
#include "server/cache/sequence.h"
#include "server/cache/sequence_name.h"
#include "server/memory/byte_budget.h"

namespace sis {

// A sequence, with a count of its own bytes.
struct HeldSequence {
  explicit HeldSequence(ByteBudget& run_budget)
      : bytes(std::numeric_limits<int64_t>::max(), &run_budget) {}
  ByteBudget bytes;
  std::optional<Sequence> sequence;  // once its base cost is charged
};

// Guarded by its run's lock.
struct Member {
  // Where it stands in Members. kUnread: its run keeps it until it has been read. kInUse: it was
  // found in use when it was to be evicted.
  enum class Place { kRead, kUnread, kLeased, kInUse };
  // Where it stands in VersionIndex, if it does: among those to look at, or by version.
  using InVersionIndex = std::variant<std::monostate, std::list<Member*>::iterator,
                                      std::multimap<uint64_t, Member*>::iterator>;

  // Only Run hands out references, under its lock.
  bool in_use() const { return held.use_count() > 1; }
  // Nobody reads, writes or leases it.
  bool idle() const { return leases == 0 && !in_use(); }
  Sequence& sequence() const { return *held->sequence; }
  std::shared_ptr<Sequence> shared() const { return {held, &*held->sequence}; }

  std::shared_ptr<HeldSequence> held;
  absl::Time last_used;
  Place place;
  int leases = 0;
  bool unread = true;
  bool release_when_free = false;
  std::list<Member>::iterator here;            // in the list of its place
  std::list<Member*>::iterator in_round = {};  // of its run's Round, if that has members
  InVersionIndex in_version_index = {};
  SequenceName name;
};

}  // namespace sis
