#include "server/cache/members.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sis {
namespace {

// Maximum number of deferred members that one search checks.
constexpr size_t kMaxDeferredChecks = 16;

}  // namespace

Member& Members::Add(const SequenceName& name, std::shared_ptr<HeldSequence> held, absl::Time now) {
  const Place place = keeps_unread_ ? Place::kUnread : Place::kRead;
  List& there = list(place);
  there.push_back(
      {.held = std::move(held), .last_used = now, .place = place, .here = {}, .name = name});
  Member& member = there.back();
  member.here = std::prev(there.end());
  by_name_.insert(&member);
  return member;
}

void Members::Remove(Member& member) {
  by_name_.erase(&member);
  MoveToEnd(member, Place::kRead);
  list(Place::kRead).pop_back();
}

void Members::MoveToEnd(Member& member, Place place, int64_t deadline) {
  List& from = member.kept() ? kept_.at(member.deadline) : list(member.place);
  List& there = place == Place::kKept ? kept_[deadline] : list(place);
  there.splice(there.end(), from, member.here);
  if (member.kept() && from.empty()) kept_.erase(member.deadline);
  member.place = place;
  member.deadline = deadline;
}

void Members::Use(Member& member, absl::Time now) {
  member.last_used = now;
  if (!member.kept()) MoveToEnd(member, HomeOf(member));
}

void Members::Keep(Member& member, absl::Time until, absl::Time now) {
  NoteRead(member);
  member.last_used = now;
  const int64_t deadline = absl::ToUnixSeconds(until - absl::Nanoseconds(1)) + 1;
  if (member.kept() && member.deadline >= deadline) return;
  MoveToEnd(member, Place::kKept, deadline);
}

Member* Members::EndKept(absl::Time now) {
  if (kept_.empty() || absl::FromUnixSeconds(kept_.begin()->first) > now) return nullptr;
  Member& member = kept_.begin()->second.front();
  member.last_used = now;
  MoveToEnd(member, HomeOf(member));
  return &member;
}

size_t Members::kept() const {
  size_t kept = 0;
  for (const auto& [deadline, members] : kept_) kept += members.size();
  return kept;
}

void Members::CheckDeferred() {
  List& in_use = list(Place::kInUse);
  std::array<List, 2> idle;  // by place
  for (size_t looks = std::min(in_use.size(), kMaxDeferredChecks); looks > 0; --looks) {
    Member& member = in_use.front();
    ++examined_;
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
  CheckDeferred();
  List& there = list(PlaceOf(which));
  while (!there.empty()) {
    Member& oldest = there.front();
    ++examined_;
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
      ++examined_;
      if (!member.in_use()) bytes += member.held->bytes.used();
      if (bytes >= enough) return enough;
    }
  }
  return bytes;
}

}  // namespace sis
