#include "server/cache/leases.h"

#include <random>

namespace sis {
namespace {

uint64_t RandomId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

uint64_t Leases::Add(Lease lease) {
  uint64_t id = RandomId();
  while (id == 0 || by_id_.contains(id)) id = RandomId();
  by_expiry_.emplace(lease.expires, id);
  by_id_.emplace(id, std::move(lease));
  return id;
}

const Lease* Leases::Find(uint64_t id, absl::Time now) const {
  const auto lease = by_id_.find(id);
  return lease == by_id_.end() || lease->second.expires < now ? nullptr : &lease->second;
}

void Leases::Renew(uint64_t id, absl::Time now) {
  Lease& lease = by_id_.at(id);
  by_expiry_.erase({lease.expires, id});
  lease.expires = now + lease.length;
  by_expiry_.emplace(lease.expires, id);
}

std::optional<Lease> Leases::Take(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  std::optional<Lease> lease = std::move(found->second);
  by_expiry_.erase({lease->expires, id});
  by_id_.erase(found);
  return lease;
}

std::optional<Lease> Leases::TakeEnded(absl::Time now) {
  if (by_expiry_.empty() || by_expiry_.begin()->first >= now) return std::nullopt;
  return Take(by_expiry_.begin()->second);
}

void Leases::Forget(const Member& member) {
  for (auto& [id, lease] : by_id_) std::erase(lease.members, &member);
}

void Leases::Clear() {
  by_id_.clear();
  by_expiry_.clear();
}

}  // namespace sis
