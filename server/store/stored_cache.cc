#include "server/store/stored_cache.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/store/log_entries.h"

namespace sis {
namespace {

// Entries of one sequence written at a time.
constexpr size_t kEntriesAtOnce = 64;
// Whole forms that may wait; a log beyond that stays a log, which is as good but slower to read.
constexpr int kMostSealing = 256;
// Bytes that a log may take, and how many times the bytes of its sequence. A longer one, of many
// small blocks, is written as a whole.
constexpr int64_t kShortLog = int64_t{4} << 20;
constexpr int64_t kMostTimes = 4;

MissingReason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return MissingReason::kCorrupt;
    case absl::StatusCode::kResourceExhausted:  // no space in memory for it
      return MissingReason::kEvicted;
    default:
      return MissingReason::kStoreDown;
  }
}

bool IsConflict(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

StoredCache::StoredCache(SequenceStore& store, RunRegistry& registry, Clock clock)
    : store_(store), registry_(registry), clock_(std::move(clock)), behind_(1) {}

StoredCache::~StoredCache() { RetryDropsBehind(); }

absl::Time StoredCache::ExpiryOf(const Run& run) const {
  // The time to live is counted from the last use, which the store doesn't see.
  const double seconds = run.config().time_to_live_seconds;
  return seconds > 0 ? clock_() + 2 * absl::Seconds(seconds) : absl::InfiniteFuture();
}

Run::Found StoredCache::Find(Run& run, const SequenceName& name) {
  Run::Found found = run.Find(name);
  if (found != Run::Found(MissingReason::kNeverArrived)) return found;
  absl::StatusOr<Run::Found> loaded = Load(run, name);
  return loaded.ok() ? *std::move(loaded) : Run::Found(ReasonOf(loaded.status()));
}

absl::StatusOr<std::shared_ptr<Sequence>> StoredCache::FindToAppend(Run& run,
                                                                    const SequenceName& name) {
  Run::Found found = run.FindToChange(name);
  if (const auto* reason = std::get_if<MissingReason>(&found)) {
    if (*reason != MissingReason::kNeverArrived) return nullptr;  // appending will be refused
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
      const Run::Found found = run.FindToChange(name);  // who reads has said so
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
  const absl::StatusOr<StoredSequence> stored = store_.Read(IdentityOf(run, name));
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
  std::vector<LogEntry> form;
  if (stored->whole_form.has_value()) {
    absl::StatusOr<std::vector<LogEntry>> parsed = ParseWholeForm(*stored->whole_form);
    if (!parsed.ok()) return parsed.status();
    form = *std::move(parsed);
  }
  for (const std::vector<LogEntry>* entries : {&std::as_const(form), &stored->entries}) {
    for (const LogEntry& entry : *entries) {
      // The first of two that don't agree counts.
      const absl::Status status = Apply(run, sequence, entry);
      if (!status.ok() && !IsConflict(status)) return status;
    }
  }
  {
    SequenceLog& log = LogOf(sequence);
    WriterLock writing(log.writing);
    log.next = stored->first_entry + static_cast<uint32_t>(stored->entries.size());
    for (const LogEntry& entry : stored->entries) log.bytes += HeapBytes(entry);
  }
  return run.Adopt(name, *std::move(held));
}

bool StoredCache::MakeRoom(Run& run, int64_t bytes) {
  if (bytes > run.budget().limit() || bytes > registry_.budget().limit()) return false;
  return registry_.MakeRoom(run, bytes, Evict::kUnread) == nullptr;
}

absl::Status StoredCache::Apply(Run& run, Sequence& sequence, const LogEntry& entry) {
  int64_t bytes_short = 0;
  absl::Status status = Replay(entry, run.config(), sequence, bytes_short);
  while (absl::IsResourceExhausted(status) && MakeRoom(run, bytes_short)) {
    status = Replay(entry, run.config(), sequence, bytes_short);
  }
  return status;
}

void StoredCache::Note(SequenceLog& log, LogEntry entry) {
  log.unwritten.push_back(std::move(entry));
}

absl::Status StoredCache::Write(Run& run, const SequenceName& name, Sequence& sequence) {
  SequenceLog& log = LogOf(sequence);
  WriterLock writing(log.writing);
  for (;;) {
    std::vector<LogEntry> entries;
    {
      WriterLock order(log.order);
      const size_t count = std::min(log.unwritten.size(), kEntriesAtOnce);
      entries.assign(log.unwritten.begin(), log.unwritten.begin() + static_cast<int64_t>(count));
    }
    if (entries.empty()) return Shorten(run, name, sequence, log);
    const SequenceIdentity identity = IdentityOf(run, name);
    if (log.next == 0) {
      // It may have been stored and evicted since its creator looked, or by a call that failed.
      const absl::StatusOr<bool> stored = store_.Has(identity);
      if (!stored.ok()) return stored.status();
      if (*stored) {
        run.Forget(name, &sequence);
        return absl::UnavailableError("stored by another call at the same time: try again");
      }
    }
    absl::Status status = store_.Append(identity, log.next, entries, ExpiryOf(run));
    if (absl::IsFailedPrecondition(status)) run.Forget(name, &sequence);
    if (!status.ok()) return status;
    {
      WriterLock order(log.order);
      const auto begin = log.unwritten.begin();
      log.unwritten.erase(begin, begin + static_cast<int64_t>(entries.size()));
    }
    log.next += static_cast<uint32_t>(entries.size());
    for (const LogEntry& entry : entries) log.bytes += HeapBytes(entry);
  }
}

void StoredCache::SealBehind(std::shared_ptr<Run> run, SequenceName name,
                             std::shared_ptr<Sequence> sequence) {
  if (sealing_ >= kMostSealing) return;
  ++sealing_;
  behind_.Schedule("", [this, run = std::move(run), name = std::move(name),
                        sequence = std::move(sequence)]() mutable {
    Seal(*run, name, *sequence).IgnoreError();  // counted with the store's operations
    sequence.reset();
    --sealing_;
  });
}

absl::Status StoredCache::Seal(const Run& run, const SequenceName& name, Sequence& sequence) {
  SequenceLog& log = LogOf(sequence);
  WriterLock writing(log.writing);
  return WriteWholeForm(run, name, sequence, log);
}

absl::Status StoredCache::Shorten(const Run& run, const SequenceName& name, Sequence& sequence,
                                  SequenceLog& log) {
  if (log.bytes <= kShortLog + kMostTimes * run.BytesOf(name)) return absl::OkStatus();
  const absl::Status written = WriteWholeForm(run, name, sequence, log);
  // Memory has a damaged block; the log doesn't.
  return absl::IsDataLoss(written) ? absl::OkStatus() : written;
}

absl::Status StoredCache::WriteWholeForm(const Run& run, const SequenceName& name,
                                         Sequence& sequence, SequenceLog& log) {
  absl::StatusOr<std::string> form;
  {
    WriterLock order(log.order);
    // What isn't stored yet isn't part of it.
    if (!log.unwritten.empty()) return absl::OkStatus();
    form = WholeForm(sequence);
  }
  if (!form.ok()) return form.status();
  const absl::Status written =
      store_.WriteWholeForm(IdentityOf(run, name), log.next, *form, ExpiryOf(run));
  if (written.ok()) log.bytes = 0;
  return written;
}

}  // namespace sis
