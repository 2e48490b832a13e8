// Which sequences of a run may be stale.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "server/cache/member.h"

namespace sis {

// A member stands under a version that is no larger than its newest one. Appends, of which the
// index hears nothing, make that no less true, but for the first into an empty sequence; so members
// are added again whenever they are handed out, which does nothing if they are there.
//
// What TakeStale costs depends on how many were added or have become stale since the last call, not
// on how many there are. Not thread-safe.
class VersionIndex {
 public:
  // Does nothing if it is there.
  void Add(Member& member);
  // Does nothing if it isn't there.
  void Remove(Member& member);

  // Takes out and returns the idle members with positions that are all of versions below
  // `oldest_fresh`. Those that are kept or empty are taken out too, to be added when they are no
  // longer kept, or are handed out.
  std::vector<Member*> TakeStale(uint64_t oldest_fresh);

  // How many members TakeStale has looked at, ever: what it costs.
  int64_t looked_at() const { return looked_at_; }

 private:
  using Place = Member::InVersionIndex;

  // One that is nowhere.
  void Insert(Member& member, Place place, uint64_t key);
  // Puts a member that is nowhere where it belongs. False if that has to wait for the end
  // of its use.
  bool Judge(Member& member, uint64_t oldest_fresh, std::vector<Member*>& stale);

  using Ordered = absl::btree_set<std::pair<uint64_t, Member*>>;
  Ordered to_look_at_;  // in the order in which they were added
  Ordered by_version_;
  uint64_t added_ = 0;
  int64_t looked_at_ = 0;
};

}  // namespace sis
