#include "server/cache/version_index.h"

#include <optional>

namespace sis {
namespace {

// Maximum number of in-use members that one TakeStale call examines.
constexpr int kMaxInUse = 16;

}  // namespace

void VersionIndex::Add(Member& member) {
  if (member.in_version_index != Place::kNowhere) return;
  Insert(member, Place::kUnchecked, ++added_);
}

void VersionIndex::Insert(Member& member, Place place, uint64_t key) {
  member.in_version_index = place;
  member.version_index_key = key;
  (place == Place::kUnchecked ? unchecked_ : by_version_).emplace(key, &member);
}

void VersionIndex::Remove(Member& member) {
  if (member.in_version_index == Place::kNowhere) return;
  (member.in_version_index == Place::kUnchecked ? unchecked_ : by_version_)
      .erase({member.version_index_key, &member});
  member.in_version_index = Place::kNowhere;
}

bool VersionIndex::Judge(Member& member, uint64_t oldest_fresh, std::vector<Member*>& stale) {
  ++examined_;
  const bool in_use = member.in_use();  // if not, nobody changes it concurrently
  const std::optional<uint64_t> newest = member.sequence().newest_version();
  if (newest.has_value() && *newest >= oldest_fresh) {
    Insert(member, Place::kByVersion, *newest);
    return true;
  }
  if (member.kept()) return true;
  if (in_use) {
    Add(member);
    return false;
  }
  if (newest.has_value()) stale.push_back(&member);
  return true;
}

std::vector<Member*> VersionIndex::TakeStale(uint64_t oldest_fresh) {
  std::vector<Member*> stale;
  while (!by_version_.empty() && by_version_.begin()->first < oldest_fresh) {
    Member& member = *by_version_.begin()->second;
    Remove(member);
    Judge(member, oldest_fresh, stale);
  }
  int in_use = 0;
  for (size_t left = unchecked_.size(); left > 0 && in_use < kMaxInUse; --left) {
    Member& member = *unchecked_.begin()->second;
    Remove(member);
    if (!Judge(member, oldest_fresh, stale)) ++in_use;
  }
  return stale;
}

}  // namespace sis
