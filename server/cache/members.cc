#include "server/cache/members.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sis {
namespace {

// Of those set aside, so many are looked at in one search.
constexpr size_t kLooks = 16;

}  // namespace

Member& Members::Add(const SequenceName& name, std::shared_ptr<HeldSequence> held, absl::Time now) {
  const Place place = keeps_unread_ ? Place::kUnread : Place::kRead;
  List& there = list(place);
  there.push_back({.held = std::move(held),
                   .last_used = now,
                   .place = place,
                   .deadline = {},
                   .here = {},
                   .name = name});
  Member& member = there.back();
  member.here = std::prev(there.end());
  by_name_.insert(&member);
  return member;
}

void Members::Remove(Member& member) {
  ForgetDeadline(member);
  by_name_.erase(&member);
  list(member.place).erase(member.here);
}

void Members::MoveToEnd(Member& member, Place place) {
  List& there = list(place);
  there.splice(there.end(), list(member.place), member.here);
  member.place = place;
}

void Members::Use(Member& member, absl::Time now) {
  member.last_used = now;
  MoveToEnd(member, HomeOf(member));
}

void Members::ForgetDeadline(Member& member) {
  if (member.kept()) deadlines_.erase(*member.deadline);
  member.deadline.reset();
}

void Members::Keep(Member& member, absl::Time until, absl::Time now) {
  if (!member.kept() || (*member.deadline)->first < until) {
    ForgetDeadline(member);
    member.deadline = deadlines_.emplace(until, &member);
  }
  NoteRead(member);
  Use(member, now);
}

Member* Members::EndKept(absl::Time now) {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return nullptr;
  Member& member = *deadlines_.begin()->second;
  ForgetDeadline(member);
  Use(member, now);
  return &member;
}

void Members::LookAtThoseInUse() {
  List& in_use = list(Place::kInUse);
  std::array<List, 4> idle;
  for (size_t looks = std::min(in_use.size(), kLooks); looks > 0; --looks) {
    Member& member = in_use.front();
    ++looked_at_;
    if (member.in_use()) {
      in_use.splice(in_use.end(), in_use, member.here);
    } else {
      member.place = HomeOf(member);
      List& home = idle[static_cast<size_t>(member.place)];
      home.splice(home.end(), in_use, member.here);
    }
  }
  for (const Place place : {Place::kRead, Place::kUnread}) {
    list(place).splice(list(place).begin(), idle[static_cast<size_t>(place)]);
  }
}

Member* Members::Oldest(Evict which) {
  LookAtThoseInUse();
  List& there = list(PlaceOf(which));
  while (!there.empty()) {
    Member& oldest = there.front();
    ++looked_at_;
    if (!oldest.in_use()) return &oldest;
    MoveToEnd(oldest, Place::kInUse);
  }
  return nullptr;
}

int64_t Members::EvictableBytes(int64_t enough, Evict last) {
  int64_t bytes = 0;
  for (const Evict which : {Evict::kRead, Evict::kUnread}) {
    if (which > last || bytes >= enough || Oldest(which) == nullptr) continue;
    for (const Member& member : list(PlaceOf(which))) {
      ++looked_at_;
      if (!member.in_use()) bytes += member.held->bytes.used();
      if (bytes >= enough) return enough;
    }
  }
  return bytes;
}

}  // namespace sis
