// The sequences that a run holds, and their order of eviction.
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

// Which sequences may be evicted.
enum class Evict {
  kRead,    // sequences that were read, or that the run may lose unread
  kUnread,  // also sequences that the run keeps until they are read
};

// The cost of an operation does not depend on the number of sequences (docs/decisions.md, 10).
// Sequences that may be evicted are in two lists, least recently used first. Sequences that are
// kept until a deadline are not. Nothing signals the end of a use. A search that finds a sequence
// in use therefore defers it, and every search checks a few deferred sequences again.
//
// Not thread-safe. Addresses of members stay the same.
class Members {
 public:
  // If `keeps_unread`, sequences go to Evict::kUnread until they have been read.
  explicit Members(bool keeps_unread) : keeps_unread_(keeps_unread) {}

  size_t size() const { return by_name_.size(); }
  // Returns null if there is none.
  Member* Find(SequenceNameView name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : *found;
  }
  const Member* Find(SequenceNameView name) const { return const_cast<Members*>(this)->Find(name); }
  // Prefetches the memory that Find reads.
  void Prefetch(SequenceNameView name) const { by_name_.prefetch(name); }
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const Member* member : by_name_) visit(*member);
  }

  // The name must be new.
  Member& Add(const SequenceName& name, std::shared_ptr<HeldSequence> held, absl::Time now);
  void Remove(Member& member);
  // Makes the member the last one to be evicted, until another one is used.
  void Use(Member& member, absl::Time now);
  void NoteRead(Member& member) { member.unread = false; }  // a Use follows
  // Keeps the member until `until`, rounded up to a second, or until the later deadline that it
  // has. Counts as a read and as a use.
  void Keep(Member& member, absl::Time until, absl::Time now);
  // Makes a member evictable whose deadline has passed, and returns it. Returns null if there is
  // none.
  Member* EndKept(absl::Time now);
  size_t kept() const;

  // Returns the least recently used member that isn't in use, or null.
  Member* Oldest(Evict which);
  // Returns the bytes that evicting the lists up to `last` frees, at most `enough`.
  int64_t EvictableBytes(int64_t enough, Evict last);

  // Returns the number of members that Oldest and EvictableBytes have examined since the start.
  int64_t examined() const { return examined_; }

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
  // `deadline` applies to kKept only.
  void MoveToEnd(Member& member, Place place, int64_t deadline = 0);
  // Moves deferred members that are idle by now to the front of their lists: their last use is
  // older than that of every member there.
  void CheckDeferred();

  bool keeps_unread_;
  std::array<List, 3> lists_;  // by place, except kKept
  // Members in kKept, by deadline. No list is empty. Deadlines are whole seconds, so there are few.
  std::map<int64_t, List> kept_;
  absl::flat_hash_set<Member*, HashOfName, SameName> by_name_;
  int64_t examined_ = 0;
};

}  // namespace sis
