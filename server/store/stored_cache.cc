#include "server/store/stored_cache.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/block.h"
#include "server/store/stored_parts.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

// Maximum number of parts in one write.
constexpr ptrdiff_t kPartsAtOnce = 64;
// Maximum number of conflicts with other servers' concurrent writes that one Write resolves.
constexpr int kMaxConflicts = 4;
// Maximum number of sequences whose merged blocks wait to be stored. Further ones stay in small
// blocks, which are valid but slower to read.
constexpr int kMaxMerging = 256;
// Maximum number of drops in one write.
constexpr size_t kDropsAtOnce = 64;
// Maximum number of drops that wait for a failing store. Beyond it, releases return an error, while
// stale and expired sequences will be found again.
constexpr size_t kMaxPendingDrops = 65'536;
// Maximum number of news that wait to be sent, and of runs known to be used elsewhere. Further news
// are not sent, and at this number all such runs are forgotten.
constexpr size_t kMaxNews = 65'536;
// Maximum number of news in one exchange.
constexpr ptrdiff_t kNewsAtOnce = 4096;
// A server that exchanged no news for longer may have missed some.
constexpr absl::Duration kMaxSilence = absl::Minutes(5);
// Time for which the reason of a dropped sequence is stored for later starts of the server.
constexpr absl::Duration kReasonKept = absl::Hours(24);

MissingReason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return MissingReason::kCorrupt;
    case absl::StatusCode::kResourceExhausted:  // no space in memory
      return MissingReason::kEvicted;
    default:
      return MissingReason::kStoreDown;
  }
}

// Returns true if a stored part contradicts memory.
bool IsConflict(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status);
}

// Returns true if no server can add to the sequence any more.
bool IsComplete(const Sequence& sequence) {
  const std::optional<uint32_t> length = sequence.sealed_length();
  return length.has_value() && sequence.positions() == *length;
}

// Returns a serialised message that names the sequence.
std::string EncodeNews(const SequenceIdentity& sequence) {
  v1::InspectSequenceRequest news;
  news.mutable_run()->set_run_id(sequence.run_id);
  news.mutable_run()->set_incarnation(sequence.incarnation);
  news.mutable_sequence()->set_id(sequence.id);
  news.mutable_sequence()->set_attempt(sequence.attempt);
  return news.SerializeAsString();
}

std::map<uint32_t, uint32_t> BlocksOf(const StoredSequence& stored) {
  std::map<uint32_t, uint32_t> blocks;
  for (const StoredPart& part : stored.parts) {
    if (part.kind == StoredPart::Kind::kBlock) blocks[part.position] = part.count;
  }
  return blocks;
}

}  // namespace

StoredCache::StoredCache(Store& store, RunRegistry& registry, Clock clock)
    : store_(store), registry_(registry), clock_(std::move(clock)), behind_(1) {}

StoredCache::~StoredCache() { RetryDropsBehind(); }

absl::Time StoredCache::ExpiryOf(const Run& run) const {
  // The time to live begins at the last use, which the store doesn't see. So the store keeps
  // sequences twice as long.
  const double seconds = run.config().time_to_live_seconds;
  return seconds > 0 ? clock_() + 2 * absl::Seconds(seconds) : absl::InfiniteFuture();
}

// --- Reading -----------------------------------------------------------------------------------

Run::Found StoredCache::Find(Run& run, const SequenceName& name) {
  Run::Found found = run.Find(name);
  const auto* in_memory = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (in_memory != nullptr && store_.shared() &&
      (!IsComplete(**in_memory) || PartsOf(**in_memory).changed_elsewhere)) {
    const std::shared_ptr<Sequence> sequence = *in_memory;
    SequenceParts& parts = PartsOf(*sequence);
    absl::Status taken;
    {
      WriterLock writing(parts.writing);
      parts.changed_elsewhere = false;
      const absl::StatusOr<uint64_t> revision = store_.Revision(IdentityOf(run, name));
      taken = revision.status();
      if (revision.ok() && *revision != parts.revision) {
        taken = TakeInStored(run, name, *sequence, parts);
      }
      if (!taken.ok()) parts.changed_elsewhere = true;
    }
    if (taken.ok()) return found;
    // The sequence left memory if the store has other content or has dropped it.
    found = run.Find(name);
    if (std::holds_alternative<std::shared_ptr<Sequence>>(found) && !sequence->sealed()) {
      return ReasonOf(taken);
    }
  }
  if (found != Run::Found(MissingReason::kNeverArrived)) return found;
  absl::StatusOr<Run::Found> loaded = Load(run, name);
  return loaded.ok() ? *std::move(loaded) : Run::Found(ReasonOf(loaded.status()));
}

absl::StatusOr<std::shared_ptr<Sequence>> StoredCache::FindToAppend(Run& run,
                                                                    const SequenceName& name) {
  Run::Found found = run.FindToChange(name);
  if (const auto* reason = std::get_if<MissingReason>(&found)) {
    if (*reason != MissingReason::kNeverArrived) return nullptr;  // the append will be refused
    absl::StatusOr<Run::Found> loaded = Load(run, name);
    if (!loaded.ok()) return loaded.status();
    found = *std::move(loaded);
  }
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (sequence == nullptr) return nullptr;
  if (absl::Status status = Write(run, name, **sequence); !status.ok()) return status;
  return *sequence;
}

absl::StatusOr<Run::Found> StoredCache::Load(Run& run, const SequenceName& name) {
  const SequenceIdentity identity = IdentityOf(run, name);
  {
    WriterLock lock(mutex_);
    bool waited = false;
    while (loading_.contains(identity)) {
      loaded_.wait(mutex_);
      waited = true;
    }
    if (waited) {
      const Run::Found found = run.FindToChange(name);  // Find has counted the read
      if (found != Run::Found(MissingReason::kNeverArrived)) return found;
    }
    loading_.insert(identity);
  }
  const absl::Cleanup done = [&] {
    WriterLock lock(mutex_);
    loading_.erase(identity);
    loaded_.notify_all();
  };
  return LoadNow(run, name);
}

absl::StatusOr<Run::Found> StoredCache::LoadNow(Run& run, const SequenceName& name) {
  const absl::StatusOr<StoredSequence> stored = store_.Load(IdentityOf(run, name));
  if (absl::IsNotFound(stored.status())) return Run::Found(MissingReason::kNeverArrived);
  if (!stored.ok()) return stored.status();
  if (stored->dropped.has_value()) {
    const auto reason = static_cast<MissingReason>(*stored->dropped);
    run.NoteDropped(name, reason);
    return Run::Found(reason);
  }
  absl::StatusOr<std::shared_ptr<Run::Held>> held = run.NewSequence(name);
  while (absl::IsResourceExhausted(held.status()) && MakeRoom(run, run.BaseBytes(name))) {
    held = run.NewSequence(name);
  }
  if (!held.ok()) return held.status();
  Sequence& sequence = (*held)->sequence;
  for (const StoredPart& part : stored->parts) {
    // If two parts disagree, the first one counts.
    const absl::Status status = Apply(run, sequence, part);
    if (!status.ok() && !IsConflict(status)) return status;
  }
  {
    SequenceParts& parts = PartsOf(sequence);
    WriterLock writing(parts.writing);
    parts.stored_blocks = BlocksOf(*stored);
    parts.revision = stored->revision;
  }
  return run.Adopt(name, *std::move(held));
}

bool StoredCache::MakeRoom(Run& run, int64_t bytes) {
  if (bytes > run.budget().limit() || bytes > registry_.budget().limit()) return false;
  return registry_.MakeRoom(run, bytes, Evict::kUnread) == nullptr;
}

absl::Status StoredCache::Apply(Run& run, Sequence& sequence, const StoredPart& part) {
  int64_t bytes_short = 0;
  absl::Status status = ApplyPart(part, run.config(), sequence, bytes_short);
  while (absl::IsResourceExhausted(status) && MakeRoom(run, bytes_short)) {
    status = ApplyPart(part, run.config(), sequence, bytes_short);
  }
  return status;
}

absl::Status StoredCache::TakeInStored(Run& run, const SequenceName& name, Sequence& sequence,
                                       SequenceParts& parts) {
  const SequenceIdentity identity = IdentityOf(run, name);
  const absl::StatusOr<StoredSequence> stored = store_.Load(identity);
  if (absl::IsNotFound(stored.status())) {
    parts.stored_blocks.clear();
    parts.revision = 0;
    return absl::OkStatus();
  }
  if (!stored.ok()) return stored.status();
  if (stored->dropped.has_value()) {
    run.NoteDropped(name, static_cast<MissingReason>(*stored->dropped));
    return absl::FailedPreconditionError(absl::StrCat(ToString(identity), " was dropped"));
  }
  WriterLock order(parts.order);
  for (const StoredPart& part : stored->parts) {
    const absl::Status status = Apply(run, sequence, part);
    if (IsConflict(status)) {
      run.Forget(name, &sequence);
      return absl::UnavailableError(
          absl::StrCat("another server stored a conflicting part, try again: ", status.message()));
    }
    if (!status.ok()) return status;
  }
  std::vector<StoredPart> unwritten;
  for (const StoredPart& part : parts.unwritten) {
    std::ranges::move(NewParts(part, stored->parts), std::back_inserter(unwritten));
  }
  parts.unwritten = std::move(unwritten);
  parts.stored_blocks = BlocksOf(*stored);
  parts.revision = stored->revision;
  return absl::OkStatus();
}

// --- Writing -----------------------------------------------------------------------------------

absl::Status StoredCache::Write(Run& run, const SequenceName& name, Sequence& sequence) {
  SequenceParts& parts = PartsOf(sequence);
  WriterLock writing(parts.writing);
  for (int conflicts = 0;;) {
    std::vector<StoredPart> written;
    {
      WriterLock order(parts.order);
      const auto begin = parts.unwritten.begin();
      const auto end = begin + std::min(std::ssize(parts.unwritten), kPartsAtOnce);
      written.assign(std::make_move_iterator(begin), std::make_move_iterator(end));
      parts.unwritten.erase(begin, end);
    }
    if (written.empty()) break;
    const absl::StatusOr<uint64_t> put =
        store_.Put(IdentityOf(run, name),
                   {.revision = parts.revision, .added = written, .expires = ExpiryOf(run)});
    if (put.ok()) {
      parts.revision = *put;
      for (const StoredPart& part : written) {
        if (part.kind == StoredPart::Kind::kSeal) NoteNews(IdentityOf(run, name));
        if (part.kind != StoredPart::Kind::kBlock) continue;
        parts.stored_blocks[part.position] = part.count;
        if (part.count < Sequence::kSmallPositions) parts.small_positions += part.count;
      }
      continue;
    }
    {
      WriterLock order(parts.order);
      parts.unwritten.insert(parts.unwritten.begin(), std::make_move_iterator(written.begin()),
                             std::make_move_iterator(written.end()));
    }
    if (!absl::IsAborted(put.status())) return put.status();
    // Another server has changed the sequence, or an earlier call that returned an error.
    if (++conflicts == kMaxConflicts) return absl::UnavailableError(put.status().message());
    absl::Status taken = TakeInStored(run, name, sequence, parts);
    if (!taken.ok()) return taken;
  }
  if (parts.small_positions >= Sequence::kSmallPositions) {
    Merge(run, name, sequence, parts, Sequence::kSmallPositions);
  }
  return absl::OkStatus();
}

void StoredCache::MergeBehind(std::shared_ptr<Run> run, SequenceName name,
                              std::shared_ptr<Sequence> sequence) {
  if (merging_ >= kMaxMerging) return;
  ++merging_;
  behind_.Schedule("", [this, run = std::move(run), name = std::move(name),
                        sequence = std::move(sequence)]() mutable {
    {
      SequenceParts& parts = PartsOf(*sequence);
      WriterLock writing(parts.writing);
      Merge(*run, name, *sequence, parts, /*least=*/0);
    }
    sequence.reset();
    --merging_;
  });
}

void StoredCache::Merge(const Run& run, const SequenceName& name, const Sequence& sequence,
                        SequenceParts& parts, uint32_t least) {
  std::vector<StoredPart> merged;
  {
    WriterLock order(parts.order);
    // Memory has more than the store. The thread that stores the rest will merge.
    if (!parts.unwritten.empty()) return;
    merged = MergedBlocks(sequence, parts.stored_blocks, least);
  }
  parts.small_positions = 0;
  for (std::span<const StoredPart> rest = merged; !rest.empty();) {
    const auto blocks = rest.first(std::min(std::ssize(rest), kPartsAtOnce));
    rest = rest.subspan(blocks.size());
    std::map<uint32_t, uint32_t> stored = parts.stored_blocks;
    std::vector<StoredPart> removed;
    for (const StoredPart& block : blocks) {
      const uint32_t end = block.position + block.count;
      for (auto it = stored.lower_bound(block.position); it != stored.end() && it->first < end;) {
        // A block that is only partly inside stays.
        if (it->first + it->second > end) break;
        removed.push_back({.position = it->first, .count = it->second});
        it = stored.erase(it);
      }
    }
    for (const StoredPart& block : blocks) stored[block.position] = block.count;
    const absl::StatusOr<uint64_t> put =
        store_.Put(IdentityOf(run, name), {.revision = parts.revision,
                                           .added = blocks,
                                           .removed = removed,
                                           .expires = ExpiryOf(run)});
    if (!put.ok()) return;
    parts.revision = *put;
    parts.stored_blocks = std::move(stored);
  }
}

// --- Dropping ----------------------------------------------------------------------------------

absl::StatusOr<int64_t> StoredCache::FinishRelease(Run& run, std::span<const SequenceName> names) {
  constexpr auto kReleased = static_cast<uint8_t>(MissingReason::kReleased);
  int64_t released = 0;
  absl::Status error;
  std::vector<DroppedSequence> dropped;
  std::vector<const SequenceName*>
      only_stored;  // set for dropped sequences that only the store had, else null
  for (const SequenceName& name : names) {
    const SequenceIdentity identity = IdentityOf(run, name);
    const SequenceName* unknown = nullptr;
    const Run::Found found = run.FindToChange(name);
    if (found == Run::Found(MissingReason::kNeverArrived)) {
      // A sequence that never arrived may still come.
      const absl::StatusOr<StoredSequence> stored = store_.Load(identity);
      if (absl::IsNotFound(stored.status()) || (stored.ok() && stored->dropped.has_value())) {
        continue;
      }
      if (!stored.ok() && !absl::IsDataLoss(stored.status())) {
        error.Update(stored.status());
        continue;
      }
      unknown = &name;
    } else if (!std::holds_alternative<MissingReason>(found)) {
      released += run.Release(name);  // it was loaded again since
    } else if (found != Run::Found(MissingReason::kReleased)) {
      continue;  // dropped before, for another reason
    }
    dropped.push_back({identity, kReleased});
    only_stored.push_back(unknown);
  }
  absl::StatusOr<std::vector<bool>> had_parts;
  if (!dropped.empty()) had_parts = store_.Drop(dropped, clock_() + kReasonKept);
  if (!dropped.empty()) error.Update(had_parts.status());
  for (size_t i = 0; i < dropped.size() && had_parts.ok(); ++i) {
    NoteNews(dropped[i].sequence);
    if (only_stored[i] != nullptr && (*had_parts)[i]) {
      released += run.NoteDropped(*only_stored[i], MissingReason::kReleased);
    }
    WriterLock lock(drops_mutex_);
    drops_.erase(dropped[i].sequence);
  }
  if (error.ok()) return released;
  return absl::Status(error.code(), absl::StrCat("not all releases are stored, send them again: ",
                                                 error.message()));
}

void StoredCache::DropBehind(const Run& run, const SequenceName& name, MissingReason reason) {
  // Other servers may have used the sequence, and the store knows when it expires for all of them.
  if (store_.shared() && reason == MissingReason::kExpired) return;
  WriterLock lock(drops_mutex_);
  if (drops_.size() >= kMaxPendingDrops) return;
  drops_.try_emplace(IdentityOf(run, name), reason);
  if (std::exchange(writing_drops_, true)) return;
  behind_.Schedule("", [this] { WriteDrops(); });
}

void StoredCache::RetryDropsBehind() {
  WriterLock lock(drops_mutex_);
  if (drops_.empty() || std::exchange(writing_drops_, true)) return;
  behind_.Schedule("", [this] { WriteDrops(); });
}

void StoredCache::DropRunBehind(const Run& run) {
  behind_.Schedule("", [this, run_id = run.id(), incarnation = run.incarnation()] {
    // RocksDB repeats it at the next start.
    store_.DropIncarnations(run_id, incarnation, incarnation + 1).IgnoreError();
  });
}

absl::StatusOr<uint64_t> StoredCache::StaleRevision(const SequenceIdentity& sequence) {
  const auto run = registry_.Find(sequence.run_id, sequence.incarnation);
  if (!run.ok()) return 0;
  const absl::StatusOr<StoredSequence> stored = store_.Load(sequence);
  if (absl::IsUnavailable(stored.status())) return stored.status();
  if (!stored.ok() || stored->dropped.has_value()) return 0;
  const uint64_t oldest_fresh = (*run)->oldest_fresh_version();
  const bool is_stale = std::ranges::all_of(stored->parts, [&](const StoredPart& part) {
    if (part.kind != StoredPart::Kind::kBlock) return true;
    const absl::StatusOr<BlockView> block =
        OpenBlock(std::as_bytes(std::span(part.bytes)), /*checksums=*/false);
    return block.ok() && block->header.policy_version < oldest_fresh;
  });
  return is_stale ? stored->revision : 0;
}

void StoredCache::WriteDrops() {
  constexpr auto kStale = static_cast<uint8_t>(MissingReason::kStale);
  for (;;) {
    std::vector<DroppedSequence> dropped;
    {
      WriterLock lock(drops_mutex_);
      for (const auto& [sequence, reason] : drops_) {
        if (dropped.size() == kDropsAtOnce) break;
        dropped.push_back({sequence, static_cast<uint8_t>(reason)});
      }
      if (dropped.empty()) {
        writing_drops_ = false;
        return;
      }
    }
    absl::Status status;
    for (DroppedSequence& drop : dropped) {
      if (!store_.shared() || drop.reason != kStale) continue;
      const absl::StatusOr<uint64_t> revision = StaleRevision(drop.sequence);
      status = revision.status();
      if (!status.ok()) break;
      drop.revision = *revision;
    }
    const auto stay =
        std::partition(dropped.begin(), dropped.end(),
                       [](const DroppedSequence& drop) { return drop.revision != 0; });
    const std::vector<DroppedSequence> kept(stay, dropped.end());
    dropped.erase(stay, dropped.end());
    absl::StatusOr<std::vector<bool>> had_parts;
    if (status.ok() && !dropped.empty()) {
      had_parts = store_.Drop(dropped, clock_() + kReasonKept);
      status = had_parts.status();
    }
    WriterLock lock(drops_mutex_);
    if (!status.ok()) {
      writing_drops_ = false;  // they are retried later
      return;
    }
    for (const DroppedSequence& drop : kept) drops_.erase(drop.sequence);
    for (size_t i = 0; i < dropped.size(); ++i) {
      // If the sequence has changed since it was found stale, look again.
      if (dropped[i].revision.has_value() && !(*had_parts)[i]) continue;
      NoteNews(dropped[i].sequence);
      drops_.erase(dropped[i].sequence);
    }
  }
}

// --- Other servers -----------------------------------------------------------------------------

void StoredCache::NoteNews(const SequenceIdentity& sequence) {
  if (!store_.shared()) return;
  WriterLock lock(news_mutex_);
  if (news_.size() < kMaxNews) news_.push_back(EncodeNews(sequence));
}

void StoredCache::ExchangeNews() {
  std::vector<std::string> own;
  {
    WriterLock lock(news_mutex_);
    const auto rest = news_.begin() + std::min(std::ssize(news_), kNewsAtOnce);
    own.assign(std::move_iterator(news_.begin()), std::move_iterator(rest));
    news_.erase(news_.begin(), rest);
  }
  const absl::StatusOr<std::vector<std::string>> news = store_.ExchangeNews(own);
  {
    WriterLock lock(news_mutex_);
    if (!news.ok()) {
      std::ranges::move(own, std::back_inserter(news_));
      return;
    }
    const absl::Time now = clock_();
    if (now - std::exchange(heard_, now) > kMaxSilence) heard_since_ = now;
  }
  for (const std::string& item : *news) {
    v1::InspectSequenceRequest named;
    if (!named.ParseFromString(item)) continue;
    if (named.sequence().id().empty()) {
      WriterLock lock(news_mutex_);
      if (used_.size() >= kMaxNews) used_.clear();
      used_[named.run().run_id()] = clock_();
      continue;
    }
    const auto run = registry_.Find(named.run().run_id(), named.run().incarnation());
    if (!run.ok()) continue;
    const SequenceName name{named.sequence().id(), named.sequence().attempt()};
    const Run::Found found = (*run)->FindToChange(name);
    if (const auto* in_memory = std::get_if<std::shared_ptr<Sequence>>(&found)) {
      PartsOf(**in_memory).changed_elsewhere = true;
    }
  }
}

bool StoredCache::IsUsedElsewhere(const std::string& run_id, absl::Duration within) {
  if (!store_.shared()) return false;
  ReaderLock lock(news_mutex_);
  const absl::Time now = clock_();
  if (now - heard_ > kMaxSilence || now - heard_since_ <= within) return true;
  const auto used = used_.find(run_id);
  return used != used_.end() && now - used->second <= within;
}

}  // namespace sis
