// Finds the stale sequences of a run.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "server/cache/member.h"

namespace sis {

// A member is filed under a version that is at most its newest one. The index is not notified of
// appends. They keep that true, except the first append to an empty sequence. Members are therefore
// added again whenever a reference is given out, which does nothing if they are in the index.
//
// The cost of TakeStale depends on the number of members that were added or became stale since the
// last call, not on the size of the index. Not thread-safe.
class VersionIndex {
 public:
  // Does nothing if the member is in the index.
  void Add(Member& member);
  // Does nothing if the member isn't in the index.
  void Remove(Member& member);

  // Removes and returns the idle members whose positions all have versions below `oldest_fresh`.
  // Also removes kept and empty members. They must be added again when their deadline passes, or
  // when a reference is given out.
  std::vector<Member*> TakeStale(uint64_t oldest_fresh);

  // Returns the number of members that TakeStale has examined since the start.
  int64_t examined() const { return examined_; }

 private:
  using Place = Member::InVersionIndex;

  // The member must not be in the index.
  void Insert(Member& member, Place place, uint64_t key);
  // Files a member that is not in the index, or appends it to `stale`. Returns false if the member
  // is in use and can't be judged yet.
  bool Judge(Member& member, uint64_t oldest_fresh, std::vector<Member*>& stale);

  using Ordered = absl::btree_set<std::pair<uint64_t, Member*>>;
  Ordered unchecked_;  // in the order in which they were added
  Ordered by_version_;
  uint64_t added_ = 0;
  int64_t examined_ = 0;
};

}  // namespace sis
