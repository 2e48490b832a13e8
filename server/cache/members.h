// The sequences that a run holds, and the order in which they go.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "server/cache/member.h"
#include "server/cache/sequence_name.h"

namespace sis {

// What may be evicted.
enum class Evict {
  kRead,    // what has been read, or may go unread; of a run that nobody reads any more, all
  kUnread,  // besides, what a run keeps until it has been read
};

// What an operation costs does not depend on how many sequences there are
// (docs/decisions.md, 10): those that may be evicted stand in two lists,
// least recently used first, without those that are kept until a deadline. Who is in use is not
// told when that ends, so a sequence that is found in use when its turn comes is set aside, and
// each search looks at a few of these again.
//
// Not thread-safe. Addresses of members stay the same.
class Members {
 public:
  // If `keeps_unread`, sequences go to Evict::kUnread until they have been read.
  explicit Members(bool keeps_unread) : keeps_unread_(keeps_unread) {}

  size_t size() const { return by_name_.size(); }
  // Null if there is none.
  Member* Find(SequenceNameView name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : *found;
  }
  const Member* Find(SequenceNameView name) const { return const_cast<Members*>(this)->Find(name); }
  // Asks the processor for the memory that Find needs.
  void Prefetch(SequenceNameView name) const { by_name_.prefetch(name); }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const Member* member : by_name_) visit(*member);
  }

  // The name must be new.
  Member& Add(const SequenceName& name, std::shared_ptr<HeldSequence> held, absl::Time now);
  void Remove(Member& member);
  // Until the next use of another one, it is the last to go.
  void Use(Member& member, absl::Time now);
  void NoteRead(Member& member) { member.unread = false; }  // a Use follows
  // Keeps it until this time, rounded up to a second, or the later one that it has: a reading use,
  // until it ends.
  void Keep(Member& member, absl::Time until, absl::Time now);
  // Ends the keeping of a member whose time has come, and returns it; null if there is none.
  Member* EndKept(absl::Time now);
  size_t kept() const;

  // The least recently used one that isn't in use; null if there is none.
  Member* Oldest(Evict which);
  // What is to be had from both lists up to `last`; or `enough`, if it is no less than that.
  int64_t EvictableBytes(int64_t enough, Evict last);

  // How many members the last two have looked at, ever: what they cost.
  int64_t looked_at() const { return looked_at_; }

 private:
  using Place = Member::Place;
  using List = std::list<Member>;
  static constexpr Place PlaceOf(Evict which) {
    return which == Evict::kRead ? Place::kRead : Place::kUnread;
  }

  // A member's own name is its key.
  static SequenceNameView NameOf(const Member* member) { return member->name; }
  static SequenceNameView NameOf(SequenceNameView name) { return name; }
  struct HashOfName {
    using is_transparent = void;
    size_t operator()(const auto& key) const { return absl::Hash<SequenceNameView>()(NameOf(key)); }
  };
  struct SameName {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const { return NameOf(a) == NameOf(b); }
  };

  List& list(Place place) { return lists_[static_cast<size_t>(place)]; }
  Place HomeOf(const Member& member) const {
    return member.unread && keeps_unread_ ? Place::kUnread : Place::kRead;
  }
  // `deadline`: of kKept.
  void MoveToEnd(Member& member, Place place, int64_t deadline = 0);
  // Puts those set aside that are idle by now at the front of their lists: they were used before
  // all that is there.
  void LookAtThoseInUse();

  bool keeps_unread_;
  std::array<List, 3> lists_;  // by place, but for kKept
  // Those of kKept, by deadline; none is empty. Deadlines are whole seconds, so that these are few.
  std::map<int64_t, List> kept_;
  absl::flat_hash_set<Member*, HashOfName, SameName> by_name_;
  int64_t looked_at_ = 0;
};

}  // namespace sis
