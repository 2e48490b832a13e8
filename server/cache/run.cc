#include "server/cache/run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/sequence_key.h"

namespace sis {
namespace {

int64_t QuotaOf(const RunConfig& config) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  const bool limited = config.byte_quota > 0 && config.byte_quota < uint64_t{kMax};
  return limited ? static_cast<int64_t>(config.byte_quota) : kMax;
}

}  // namespace

Run::Run(std::string id, uint64_t incarnation, RunConfig config, const Limits& limits, Arena& arena,
         ByteBudget& server_budget, std::shared_ptr<RunCounters> counters, Clock clock,
         BackingStore* backing)
    : id_(std::move(id)),
      incarnation_(incarnation),
      config_(std::move(config)),
      limits_(limits),
      time_to_live_(config_.time_to_live_seconds > 0 ? absl::Seconds(config_.time_to_live_seconds)
                                                     : absl::InfiniteDuration()),
      arena_(arena),
      counters_(std::move(counters)),
      clock_(std::move(clock)),
      backing_(backing),
      budget_(QuotaOf(config_), &server_budget),
      steps_(limits.steps_kept),
      // Ids of an earlier life of the server are not mistaken for new ones.
      next_lease_id_(static_cast<uint64_t>(absl::ToUnixNanos(clock_()))) {}

Run::Member* Run::Touch(SequenceNameView name, absl::Time now) {
  const auto found = sequences_.find(name);
  if (found == sequences_.end()) return nullptr;
  Member& member = found->second;
  if (member.idle() && now - member.last_used > time_to_live_) {
    Drop(found->first, MissingReason::kExpired);
    return nullptr;
  }
  member.last_used = now;
  by_age_.splice(by_age_.end(), by_age_, member.by_age);
  return &member;
}

Run::Found Run::Find(const SequenceName& name) {
  WriterLock lock(mutex_);
  if (Member* member = Touch(name, clock_())) return member->shared();
  const auto dropped = dropped_.find(name);
  return dropped == dropped_.end() ? MissingReason::kNeverArrived : dropped->second;
}

absl::StatusOr<std::shared_ptr<Sequence>> Run::FindOrCreate(const SequenceName& name) {
  WriterLock lock(mutex_);
  if (closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", incarnation_, " of run '", id_, "' is superseded"));
  }
  if (Member* member = Touch(name, clock_())) {
    if (member->release_when_free) {
      return absl::FailedPreconditionError(absl::StrCat(ToString(name), " was released"));
    }
    return member->shared();
  }
  if (const auto dropped = dropped_.find(name); dropped != dropped_.end()) {
    return absl::FailedPreconditionError(absl::StrCat(ToString(name), " left the cache (",
                                                      std::string(Name(dropped->second)),
                                                      "): send it as another attempt"));
  }
  absl::StatusOr<std::shared_ptr<Held>> held = NewSequence(name);
  if (!held.ok()) return held.status();
  return Insert(name, *std::move(held)).shared();
}

void Run::FindToAppend(std::span<const SequenceNameView> names,
                       std::span<std::shared_ptr<Sequence>> found) {
  WriterLock lock(mutex_);
  const absl::Time now = clock_();
  // The memory of one is waited for while that of the next ones is on its way.
  for (const SequenceNameView& name : names) sequences_.prefetch(name);
  for (const SequenceNameView& name : names) {
    const auto member = sequences_.find(name);
    if (member == sequences_.end()) continue;
    __builtin_prefetch(&*member->second.by_age, 1);
    __builtin_prefetch(member->second.held.get(), 1);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const Member* member = Touch(names[i], now);
    const bool takes = member != nullptr && !member->release_when_free;
    found[i] = takes ? member->shared() : nullptr;
  }
}

absl::StatusOr<std::shared_ptr<Run::Held>> Run::NewSequence(const SequenceName& name) {
  auto held = std::make_shared<Held>(budget_);
  if (!held->bytes.TryCharge(Sequence::kBaseBytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Sequence::kBaseBytes, " bytes are not to be had"));
  }
  held->sequence.emplace(config_.record_format(), SequenceKey(config_.seed, name.attempt, name.id),
                         arena_, held->bytes, backing_ != nullptr ? backing_->Attach() : nullptr);
  return held;
}

Run::Member& Run::Insert(const SequenceName& name, std::shared_ptr<Held> held) {
  by_age_.push_back(name);
  return sequences_[name] = {
             .held = std::move(held), .last_used = clock_(), .by_age = std::prev(by_age_.end())};
}

Run::Found Run::Adopt(const SequenceName& name, std::shared_ptr<Held> held) {
  WriterLock lock(mutex_);
  if (Member* member = Touch(name, clock_())) return member->shared();
  if (const auto dropped = dropped_.find(name); dropped != dropped_.end()) return dropped->second;
  if (closed_) return MissingReason::kNeverArrived;
  return Insert(name, std::move(held)).shared();
}

void Run::Erase(const SequenceName& name) {
  const auto found = sequences_.find(name);
  // `name` may be the list's own.
  const auto by_age = found->second.by_age;
  sequences_.erase(found);
  by_age_.erase(by_age);
}

void Run::Forget(const SequenceName& name, const Sequence* sequence) {
  WriterLock lock(mutex_);
  const auto found = sequences_.find(name);
  if (found == sequences_.end()) return;
  if (sequence != nullptr && sequence != &found->second.sequence()) return;
  for (auto& [lease_id, lease] : leases_) std::erase(lease.sequences, name);
  Erase(name);
}

bool Run::NoteDropped(const SequenceName& name, MissingReason reason) {
  Forget(name, nullptr);
  WriterLock lock(mutex_);
  return RememberDropped(name, reason);
}

bool Run::RememberDropped(const SequenceName& name, MissingReason reason) {
  if (!dropped_.emplace(name, reason).second) return false;
  dropped_in_order_.push_back(name);
  if (dropped_in_order_.size() > kDroppedKept) {
    dropped_.erase(dropped_in_order_.front());
    dropped_in_order_.pop_front();
  }
  return true;
}

void Run::ForgetIfEmpty(SequenceNameView name) {
  WriterLock lock(mutex_);
  const auto found = sequences_.find(name);
  if (found == sequences_.end()) return;
  const Member& member = found->second;
  if (!member.idle() || member.sequence().positions() > 0 || member.sequence().sealed()) return;
  by_age_.erase(member.by_age);
  sequences_.erase(found);
}

void Run::Drop(const SequenceName& name, MissingReason reason) {
  const bool still_stored = backing_ != nullptr && reason == MissingReason::kEvicted;
  if (!still_stored) RememberDropped(name, reason);
  if (!still_stored && backing_ != nullptr) backing_->DropBehind(*this, name, reason);
  Erase(name);
  counters_->AddDropped(reason);
}

uint32_t Run::CommittedLength(SequenceNameView name) const {
  ReaderLock lock(mutex_);
  const auto found = sequences_.find(name);
  return found == sequences_.end() ? 0 : found->second.sequence().committed_length();
}

int64_t Run::BytesOf(SequenceNameView name) const {
  ReaderLock lock(mutex_);
  const auto found = sequences_.find(name);
  return found == sequences_.end() ? 0 : found->second.held->bytes.used();
}

uint64_t Run::policy_version() const {
  ReaderLock lock(mutex_);
  return policy_version_;
}

uint64_t Run::oldest_fresh_version() const {
  ReaderLock lock(mutex_);
  return OldestFreshVersion();
}

uint64_t Run::OldestFreshVersion() const {
  if (!config_.max_staleness.has_value() || policy_version_ < *config_.max_staleness) return 0;
  return policy_version_ - *config_.max_staleness;
}

bool Run::IsStale(const Member& member) const {
  const uint64_t oldest_fresh = OldestFreshVersion();
  return oldest_fresh > 0 && member.idle() && member.sequence().positions() > 0 &&
         member.sequence().newest_version() < oldest_fresh;
}

absl::StatusOr<int64_t> Run::AdvanceVersion(uint64_t version) {
  WriterLock lock(mutex_);
  if (version < policy_version_) {
    return absl::FailedPreconditionError(
        absl::StrCat("policy_version ", version, " is before the current one, ", policy_version_));
  }
  policy_version_ = version;
  return DropStale();
}

int64_t Run::DropStale() {
  if (OldestFreshVersion() == 0) return 0;
  std::vector<SequenceName> stale;
  for (const auto& [name, member] : sequences_) {
    if (IsStale(member)) stale.push_back(name);
  }
  for (const SequenceName& name : stale) Drop(name, MissingReason::kStale);
  return static_cast<int64_t>(stale.size());
}

absl::StatusOr<uint64_t> Run::Lease(std::span<const SequenceName> names, absl::Duration length) {
  WriterLock lock(mutex_);
  if (static_cast<int>(leases_.size()) >= limits_.max_leases) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the run has ", leases_.size(), " leases, the most allowed"));
  }
  LeaseRecord lease{.expires = clock_() + length, .length = length};
  lease.sequences.reserve(names.size());
  for (const SequenceName& name : names) {
    if (Member* member = Touch(name, clock_())) {
      ++member->leases;
      lease.sequences.push_back(name);
    }
  }
  const uint64_t lease_id = next_lease_id_++;
  leases_.emplace(lease_id, std::move(lease));
  return lease_id;
}

absl::Status Run::RenewLease(uint64_t lease_id) {
  WriterLock lock(mutex_);
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end() || lease->second.expires < clock_()) {
    const bool ended_here = lease != leases_.end() || backing_ == nullptr || !backing_->shared() ||
                            std::ranges::find(ended_leases_, lease_id) != ended_leases_.end();
    if (!ended_here) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("lease ", lease_id, " has ended"));
  }
  lease->second.expires = clock_() + lease->second.length;
  return absl::OkStatus();
}

bool Run::EndLease(uint64_t lease_id) {
  WriterLock lock(mutex_);
  const auto lease = leases_.find(lease_id);
  if (lease == leases_.end()) return false;
  EndLeaseLocked(lease);
  return true;
}

void Run::EndLeases() {
  WriterLock lock(mutex_);
  while (!leases_.empty()) EndLeaseLocked(leases_.begin());
}

void Run::EndLeaseLocked(absl::flat_hash_map<uint64_t, LeaseRecord>::iterator lease) {
  for (const SequenceName& name : lease->second.sequences) {
    Member& member = sequences_.at(name);  // leased sequences are never dropped
    --member.leases;
    if (member.leases > 0) continue;
    if (member.release_when_free) {
      Drop(name, MissingReason::kReleased);
    } else if (IsStale(member)) {
      Drop(name, MissingReason::kStale);
    }
  }
  if (backing_ != nullptr && backing_->shared()) {
    ended_leases_.push_back(lease->first);
    if (static_cast<int>(ended_leases_.size()) > limits_.max_leases) ended_leases_.pop_front();
  }
  leases_.erase(lease);
}

bool Run::Release(const SequenceName& name) {
  WriterLock lock(mutex_);
  const auto found = sequences_.find(name);
  if (found == sequences_.end()) return false;
  if (found->second.release_when_free) return false;  // goes with its last lease
  found->second.release_when_free = true;
  if (found->second.leases == 0) Drop(name, MissingReason::kReleased);
  return true;
}

void Run::DropExpired() {
  WriterLock lock(mutex_);
  const absl::Time now = clock_();
  std::vector<uint64_t> ended;
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.expires < now) ended.push_back(lease_id);
  }
  for (const uint64_t lease_id : ended) EndLeaseLocked(leases_.find(lease_id));

  DropStale();  // that were in use when the version advanced, or came too late
  for (auto name = by_age_.begin(); name != by_age_.end();) {
    const auto current = name++;
    const Member& member = sequences_.at(*current);
    if (now - member.last_used <= time_to_live_) break;  // the rest was used later
    if (member.idle()) Drop(*current, MissingReason::kExpired);
  }
}

std::list<SequenceName>::const_iterator Run::FindEvictable() const {
  const auto idle = [this](const SequenceName& name)
                        ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return sequences_.at(name).idle(); };
  return std::ranges::find_if(by_age_, idle);
}

int64_t Run::EvictableBytes(int64_t enough) const {
  ReaderLock lock(mutex_);
  int64_t bytes = 0;
  for (auto name = by_age_.begin(); name != by_age_.end() && bytes < enough; ++name) {
    const Member& member = sequences_.at(*name);
    if (member.idle()) bytes += member.held->bytes.used();
  }
  return std::min(bytes, enough);
}

std::optional<absl::Time> Run::OldestEvictable() const {
  ReaderLock lock(mutex_);
  const auto oldest = FindEvictable();
  if (oldest == by_age_.end()) return std::nullopt;
  return sequences_.at(*oldest).last_used;
}

bool Run::EvictOldest() {
  WriterLock lock(mutex_);
  const auto oldest = FindEvictable();
  if (oldest == by_age_.end()) return false;
  Drop(*oldest, MissingReason::kEvicted);
  return true;
}

void Run::Close() {
  Members dropped;  // freed without the lock
  WriterLock lock(mutex_);
  closed_ = true;
  dropped.swap(sequences_);
  by_age_.clear();
  leases_.clear();
}

RunDescription Run::Describe() const {
  ReaderLock lock(mutex_);
  RunDescription run{.id = id_,
                     .incarnation = incarnation_,
                     .config = config_,
                     .policy_version = policy_version_,
                     .sequences = sequences_.size(),
                     .bytes = static_cast<uint64_t>(budget_.used()),
                     .leases = leases_.size(),
                     .last_draw = steps_.last_draw()};
  for (const auto& [name, member] : sequences_) {
    run.sealed_sequences += member.sequence().sealed();
    run.positions += member.sequence().positions();
  }
  return run;
}

int64_t Run::sequences() const {
  ReaderLock lock(mutex_);
  return static_cast<int64_t>(sequences_.size());
}

}  // namespace sis
