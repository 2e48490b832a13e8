#include "server/cache/version_index.h"

#include <iterator>
#include <optional>
#include <variant>

namespace sis {
namespace {

// So many that can't be judged because they are in use are looked at in one call.
constexpr int kLooks = 16;

}  // namespace

bool IsStale(const Member& member, uint64_t oldest_fresh) {
  const std::optional<uint64_t> newest = member.sequence().newest_version();
  return newest.has_value() && *newest < oldest_fresh;
}

void VersionIndex::Add(Member& member) {
  if (!std::holds_alternative<std::monostate>(member.in_version_index)) return;
  to_look_at_.push_back(&member);
  member.in_version_index = std::prev(to_look_at_.end());
}

void VersionIndex::Remove(Member& member) {
  if (const auto* place = std::get_if<1>(&member.in_version_index)) to_look_at_.erase(*place);
  if (const auto* place = std::get_if<2>(&member.in_version_index)) by_version_.erase(*place);
  member.in_version_index = std::monostate();
}

void VersionIndex::LookAgain(Member& member) {
  Remove(member);
  Add(member);
}

bool VersionIndex::Judge(Member& member, uint64_t oldest_fresh, std::vector<Member*>& stale) {
  ++looked_at_;
  const bool in_use = member.in_use();  // if not, nobody changes it meanwhile
  const std::optional<uint64_t> newest = member.sequence().newest_version();
  if (newest.has_value() && *newest >= oldest_fresh) {
    member.in_version_index = by_version_.emplace(*newest, &member);
    return true;
  }
  if (member.leases > 0) return true;
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
  for (size_t left = to_look_at_.size(); left > 0 && in_use < kLooks; --left) {
    Member& member = *to_look_at_.front();
    Remove(member);
    if (!Judge(member, oldest_fresh, stale)) ++in_use;
  }
  return stale;
}

}  // namespace sis
