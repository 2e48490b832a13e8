#include "server/cache/run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/sequence_key.h"
#include "server/cache/inspection.h"

namespace sis {
namespace {

int64_t QuotaOf(const RunConfig& config) {
  constexpr auto kMax = std::numeric_limits<int64_t>::max();
  const bool limited = config.byte_quota > 0 && config.byte_quota < uint64_t{kMax};
  return limited ? static_cast<int64_t>(config.byte_quota) : kMax;
}

}  // namespace

Run::Run(std::string id, uint64_t incarnation, RunConfig config, const Limits& limits,
         ByteBudget& server_budget, ByteBudget& steps_budget, ByteBudget& inspection_budget,
         std::shared_ptr<RunCounters> counters, Clock clock, BackingStore* backing)
    : id_(std::move(id)),
      incarnation_(incarnation),
      config_(std::move(config)),
      limits_(limits),
      time_to_live_(config_.time_to_live_seconds > 0 ? absl::Seconds(config_.time_to_live_seconds)
                                                     : absl::InfiniteDuration()),
      counters_(std::move(counters)),
      clock_(std::move(clock)),
      backing_(backing),
      budget_(QuotaOf(config_), &server_budget),
      steps_(steps_budget),
      inspection_(std::make_unique<Inspection>(limits.inspected_bytes / kInspectedShare,
                                               static_cast<int>(config_.top_k), inspection_budget)),
      // With a store, evicted sequences can be read again, so none need to be kept until read.
      members_(!config_.evict_unread && backing_ == nullptr),
      last_read_(clock_()) {}

Run::~Run() = default;

Member* Run::Touch(Member* member, absl::Time now) {
  if (member == nullptr) return nullptr;
  if (member->idle() && now - member->last_used > time_to_live_) {
    Drop(*member, MissingReason::kExpired);
    return nullptr;
  }
  members_.Use(*member, now);
  if (config_.max_staleness.has_value()) versions_.Add(*member);
  return member;
}

Run::Found Run::Find(const SequenceName& name) {
  WriterLock lock(mutex_);
  Member* member = members_.Find(name);
  if (member != nullptr) members_.NoteRead(*member);
  NoteRead(clock_());
  return FindLocked(member, name, last_read_);
}

void Run::NoteRead(absl::Time now) {
  last_read_ = now;
  recent_events_.NoteRead(now);
}

Run::Found Run::FindToChange(const SequenceName& name) {
  WriterLock lock(mutex_);
  return FindLocked(members_.Find(name), name, clock_());
}

Run::Found Run::FindLocked(Member* member, const SequenceName& name, absl::Time now) {
  if (Touch(member, now) != nullptr) return member->shared();
  return dropped_.Find(name).value_or(MissingReason::kNeverArrived);
}

absl::StatusOr<std::shared_ptr<Sequence>> Run::FindOrCreate(const SequenceName& name) {
  WriterLock lock(mutex_);
  if (closed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", incarnation_, " of run '", id_, "' is superseded"));
  }
  if (Member* member = Touch(members_.Find(name), clock_())) {
    return member->shared();
  }
  if (const auto reason = dropped_.Find(name); reason.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(ToString(name), " left the cache (",
                                                      std::string(Name(*reason)),
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
  // Prefetching overlaps the memory accesses of all names.
  absl::InlinedVector<Member*, 32> members(names.size());
  for (const SequenceNameView& name : names) members_.Prefetch(name);
  for (size_t i = 0; i < names.size(); ++i) {
    members[i] = members_.Find(names[i]);
    if (members[i] != nullptr) __builtin_prefetch(members[i], 1);
  }
  for (const Member* member : members) {
    if (member != nullptr) __builtin_prefetch(member->held.get(), 1);
  }
  const size_t before = members_.size();
  for (size_t i = 0; i < names.size(); ++i) {
    // Touch removes an expired member, and `names` may contain it twice.
    if (members_.size() != before) members[i] = members_.Find(names[i]);
    const Member* member = Touch(members[i], now);
    found[i] = member != nullptr ? member->shared() : nullptr;
  }
}

int64_t Run::BaseBytes(SequenceNameView name) const {
  return Sequence::kBaseBytes + HeapBytes(name.id) +
         (backing_ != nullptr ? BackingStore::kAttachmentBytes : 0);
}

absl::StatusOr<std::shared_ptr<Run::Held>> Run::NewSequence(const SequenceName& name) {
  const int64_t bytes = BaseBytes(name);
  if (!budget_.TryCharge(bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no space for ", bytes, " bytes in quota or budget"));
  }
  return std::make_shared<Held>(budget_, bytes, SequenceKey(config_.seed, name.attempt, name.id),
                                backing_ != nullptr ? backing_->Attach() : nullptr);
}

Member& Run::Insert(const SequenceName& name, std::shared_ptr<Held> held) {
  Member& member = members_.Add(name, std::move(held), clock_());
  if (config_.max_staleness.has_value()) versions_.Add(member);
  return member;
}

Run::Found Run::Adopt(const SequenceName& name, std::shared_ptr<Held> held) {
  WriterLock lock(mutex_);
  if (Member* member = Touch(members_.Find(name), clock_())) return member->shared();
  if (const auto reason = dropped_.Find(name); reason.has_value()) return *reason;
  if (closed_) return MissingReason::kNeverArrived;
  return Insert(name, std::move(held)).shared();
}

void Run::Remove(Member& member) {
  versions_.Remove(member);
  members_.Remove(member);
}

void Run::Forget(const SequenceName& name, const Sequence* sequence) {
  WriterLock lock(mutex_);
  Member* member = members_.Find(name);
  if (member == nullptr) return;
  if (sequence != nullptr && sequence != &member->sequence()) return;
  Remove(*member);
}

bool Run::NoteDropped(const SequenceName& name, MissingReason reason) {
  Forget(name, nullptr);
  WriterLock lock(mutex_);
  return dropped_.Add(name, reason);
}

void Run::ForgetIfEmpty(SequenceNameView name) {
  WriterLock lock(mutex_);
  Member* member = members_.Find(name);
  if (member == nullptr) return;
  if (member->idle() && member->sequence().committed_length() == 0 &&
      !member->sequence().sealed()) {
    Remove(*member);
  }
}

void Run::Drop(Member& member, MissingReason reason) {
  const bool evicted = reason == MissingReason::kEvicted;
  // A shared store decides for all servers whether the sequence is stale or has expired.
  const bool still_stored = backing_ != nullptr &&
                            (evicted || (backing_->shared() && reason != MissingReason::kReleased));
  if (!still_stored) dropped_.Add(member.name, reason);
  if (backing_ != nullptr && !evicted) backing_->DropBehind(*this, member.name, reason);
  counters_->AddDropped(reason);
  if (!still_stored && evicted && member.unread) {
    counters_->AddEvictedUnread();
    recent_events_.NoteEvictedUnread(clock_());
  }
  Remove(member);
}

uint32_t Run::CommittedLength(SequenceNameView name) const {
  ReaderLock lock(mutex_);
  const Member* member = members_.Find(name);
  return member == nullptr ? 0 : member->sequence().committed_length();
}

int64_t Run::BytesOf(SequenceNameView name) const {
  ReaderLock lock(mutex_);
  const Member* member = members_.Find(name);
  return member == nullptr ? 0 : member->held->bytes.used();
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

absl::StatusOr<int64_t> Run::AdvanceVersion(uint64_t version, absl::string_view label) {
  WriterLock lock(mutex_);
  if (!label.empty()) {
    absl::Status status = CheckVersionLabel(version_labels_, version, label);
    if (!status.ok()) return status;
    sis::AddVersionLabels({{version, std::string(label)}}, version_labels_);
  } else if (version < policy_version_) {
    return absl::FailedPreconditionError(
        absl::StrCat("policy_version ", version, " is before the current one, ", policy_version_));
  }
  policy_version_ = std::max(policy_version_, version);
  return DropStale();
}

VersionLabels Run::version_labels() const {
  ReaderLock lock(mutex_);
  return version_labels_;
}

void Run::AddVersionLabels(const VersionLabels& labels) {
  WriterLock lock(mutex_);
  sis::AddVersionLabels(labels, version_labels_);
}

int64_t Run::DropStale() {
  const std::vector<Member*> stale = versions_.TakeStale(OldestFreshVersion());
  for (Member* member : stale) Drop(*member, MissingReason::kStale);
  return static_cast<int64_t>(stale.size());
}

void Run::Keep(std::span<const SequenceName> names, absl::Duration length) {
  WriterLock lock(mutex_);
  NoteRead(clock_());
  for (const SequenceName& name : names) {
    Member* member = Touch(members_.Find(name), last_read_);
    if (member != nullptr) members_.Keep(*member, last_read_ + length, last_read_);
  }
}

bool Run::Release(const SequenceName& name) {
  WriterLock lock(mutex_);
  Member* member = members_.Find(name);
  if (member == nullptr) return false;
  Drop(*member, MissingReason::kReleased);
  return true;
}

void Run::DropExpired() {
  WriterLock lock(mutex_);
  const absl::Time now = clock_();
  while (Member* member = members_.EndKept(now)) {
    if (config_.max_staleness.has_value()) versions_.Add(*member);
  }
  if (config_.max_staleness.has_value()) DropStale();
  if (time_to_live_ == absl::InfiniteDuration()) return;
  for (const Evict which : {Evict::kRead, Evict::kUnread}) {
    Member* oldest = members_.Oldest(which);
    for (; oldest != nullptr && now - oldest->last_used > time_to_live_;
         oldest = members_.Oldest(which)) {
      Drop(*oldest, MissingReason::kExpired);
    }
  }
}

int64_t Run::EvictableBytes(int64_t enough, Evict last) {
  WriterLock lock(mutex_);
  return members_.EvictableBytes(enough, LastToGo(last));
}

std::optional<absl::Time> Run::OldestEvictable(Evict which, Evict last) {
  WriterLock lock(mutex_);
  if (which > LastToGo(last)) return std::nullopt;
  const Member* oldest = members_.Oldest(which);
  return oldest == nullptr ? std::nullopt : std::optional(oldest->last_used);
}

bool Run::IsAbandoned() const { return clock_() - last_read_ > limits_.reader_absence; }

void Run::ForgetAbandonedInspection() {
  {
    ReaderLock lock(mutex_);
    if (!IsAbandoned()) return;
  }
  inspection_->Clear();
}

Evict Run::LastToGo(Evict asked) const { return IsAbandoned() ? Evict::kUnread : asked; }

bool Run::EvictOldest(Evict last) {
  WriterLock lock(mutex_);
  Member* oldest = members_.Oldest(Evict::kRead);
  if (oldest == nullptr && LastToGo(last) == Evict::kUnread)
    oldest = members_.Oldest(Evict::kUnread);
  if (oldest == nullptr) return false;
  Drop(*oldest, MissingReason::kEvicted);
  return true;
}

int64_t Run::examined() const {
  ReaderLock lock(mutex_);
  return members_.examined() + versions_.examined();
}

void Run::Close() {
  inspection_->Close();
  steps_.Close();
  Members dropped(false);  // freed without the lock
  WriterLock lock(mutex_);
  closed_ = true;
  versions_ = VersionIndex();
  std::swap(dropped, members_);
  if (backing_ != nullptr) backing_->DropRunBehind(*this);
}

RunDescription Run::Describe() const {
  ReaderLock lock(mutex_);
  RunDescription run{.id = id_,
                     .incarnation = incarnation_,
                     .config = config_,
                     .policy_version = policy_version_,
                     .sequences = members_.size(),
                     .bytes = static_cast<uint64_t>(budget_.used()),
                     .kept_sequences = members_.kept(),
                     .last_draw = steps_.last_draw()};
  members_.ForEach([&](const Member& member) {
    run.unread_sequences += backing_ == nullptr && member.unread;
    run.sealed_sequences += member.sequence().sealed();
    run.positions += member.sequence().positions();
  });
  return run;
}

std::vector<SequenceDescription> Run::ListSequences(const std::optional<SequenceName>& after,
                                                    size_t limit) const {
  ReaderLock lock(mutex_);
  const auto before = [](const Member* a, const Member* b) { return a->name < b->name; };
  std::vector<const Member*> first;  // a heap, the last name in front
  members_.ForEach([&](const Member& member) {
    if (after.has_value() && member.name <= *after) return;
    if (first.size() == limit) {
      if (first.empty() || !(member.name < first.front()->name)) return;
      std::ranges::pop_heap(first, before);
      first.pop_back();
    }
    first.push_back(&member);
    std::ranges::push_heap(first, before);
  });
  std::ranges::sort_heap(first, before);
  std::vector<SequenceDescription> listed;
  for (const Member* member : first) {
    const Sequence& sequence = member->sequence();
    listed.push_back({.name = member->name,
                      .committed_length = sequence.committed_length(),
                      .positions = sequence.positions(),
                      .sealed = sequence.sealed(),
                      .unread = backing_ == nullptr && member->unread,
                      .newest_version = sequence.newest_version().value_or(0),
                      .bytes = member->held->bytes.used()});
  }
  return listed;
}

int64_t Run::sequences() const {
  ReaderLock lock(mutex_);
  return static_cast<int64_t>(members_.size());
}

}  // namespace sis
