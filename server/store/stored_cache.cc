#include "server/store/stored_cache.h"

#include <algorithm>
#include <optional>
#include <random>
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
// A log may take so much, and so many times what its sequence holds; only then it is written as a
// whole, so that a worker who appends and truncates for ever can't make it longer and longer.
constexpr int64_t kShortLog = int64_t{4} << 20;
constexpr int64_t kMostTimes = 4;

MissingReason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return MissingReason::kCorrupt;
    case absl::StatusCode::kResourceExhausted:  // lost, or no room in memory for it
      return MissingReason::kEvicted;
    default:
      return MissingReason::kStoreDown;
  }
}

// Whether no other replica can have anything to add to, or to take away from, the records of these
// positions and these of their columns.
bool Complete(const Sequence& sequence, uint32_t first, uint32_t count,
              std::span<const uint32_t> columns) {
  const std::optional<uint32_t> sealed = sequence.sealed_length();
  if (!sealed.has_value()) return false;
  if (count == 0) count = *sealed - std::min(first, *sealed);
  const Sequence::Reader reader(sequence);
  bool complete = true;
  reader.ForEachPiece(first, count, [&](const Sequence::Reader::Piece& piece) {
    complete = complete && piece.page != nullptr;
  });
  for (const uint32_t column : columns) {
    complete = complete && reader.HasColumn(column, first, count);
  }
  return complete;
}

uint64_t RandomMark() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

bool IsTruncate(const LogEntry& entry) { return entry.kind == LogEntry::Kind::kTruncate; }

bool IsConflict(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

StoredCache::StoredCache(SequenceStore& store, RunRegistry& registry, Clock clock)
    : store_(store),
      registry_(registry),
      clock_(std::move(clock)),
      marks_(RandomMark()),
      behind_(1) {}

StoredCache::~StoredCache() {
  for (const std::shared_ptr<Run>& run : registry_.List()) run->EndLeases();
  RetryDropsBehind();
}

absl::Time StoredCache::ExpiryOf(const Run& run) const {
  // The time to live is counted from the last use, which the store doesn't see.
  const double seconds = run.config().time_to_live_seconds;
  return seconds > 0 ? clock_() + 2 * absl::Seconds(seconds) : absl::InfiniteFuture();
}

Run::Found StoredCache::Find(Run& run, const SequenceName& name, uint32_t first, uint32_t count,
                             std::span<const uint32_t> columns) {
  Run::Found found = run.Find(name);
  if (const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found)) {
    if (!store_.shared() || Complete(**sequence, first, count, columns)) return found;
    absl::Status status;
    {
      SequenceLog& log = LogOf(**sequence);
      WriterLock writing(log.writing);
      status = CatchUp(run, name, **sequence, log);
    }
    // What can't be had now is missing from what is returned.
    if (!absl::IsAborted(status) && !absl::IsFailedPrecondition(status)) return found;
    found = run.Find(name);
    if (std::holds_alternative<std::shared_ptr<Sequence>>(found)) return found;
  }
  if (std::get<MissingReason>(found) != MissingReason::kNeverArrived) return found;
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
  const absl::Status status = Write(run, name, **sequence);
  if (absl::IsAborted(status)) return FindToAppend(run, name);  // what the store has, from now on
  if (!status.ok()) return status;
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
  const absl::StatusOr<StoredSequence> stored = store_.Read(IdentityOf(run, name), 0);
  if (absl::IsNotFound(stored.status())) return Run::Found(MissingReason::kNeverArrived);
  if (!stored.ok()) return stored.status();
  if (stored->dropped.has_value()) {
    const auto reason = static_cast<MissingReason>(*stored->dropped);
    if (!IsOfWhatWasKnown(reason)) run.NoteDropped(name, reason);
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
      // The first of two that don't agree counts, here as on every replica.
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
  absl::Status status = Replay(entry, sequence, bytes_short);
  while (absl::IsResourceExhausted(status) && MakeRoom(run, bytes_short)) {
    status = Replay(entry, sequence, bytes_short);
  }
  return status;
}

absl::Status StoredCache::CatchUp(Run& run, const SequenceName& name, Sequence& sequence,
                                  SequenceLog& log) {
  if (log.forgotten) return absl::AbortedError("forgotten");
  const absl::StatusOr<StoredSequence> stored = store_.Read(IdentityOf(run, name), log.next);
  if (absl::IsNotFound(stored.status())) return absl::OkStatus();
  if (!stored.ok()) return stored.status();
  if (stored->dropped.has_value()) {
    const auto reason = static_cast<MissingReason>(*stored->dropped);
    log.forgotten = true;
    run.Forget(name, &sequence);
    if (!IsOfWhatWasKnown(reason)) run.NoteDropped(name, reason);
    return absl::FailedPreconditionError(absl::StrCat(
        "dropped elsewhere (", std::string(Name(reason)), "): send it as another attempt"));
  }
  const auto forget = [&](std::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log.writing) {
    run.Forget(name, &sequence);
    log.forgotten = true;
    return absl::AbortedError(absl::StrCat("changed by another replica: ", std::string(why)));
  };
  // It doesn't say what was truncated.
  if (stored->whole_form.has_value()) return forget("sealed");

  WriterLock order(log.order);
  const auto apply = [&](const LogEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log.writing,
                                                                              log.order) {
    if (!log.unwritten.empty() && log.unwritten.front() == entry) {
      log.unwritten.erase(log.unwritten.begin());  // written after all, though nobody said so
      return absl::OkStatus();
    }
    // A truncation on either side can't change places with what the other did.
    const bool mixed = !log.unwritten.empty() &&
                       (IsTruncate(entry) || std::ranges::any_of(log.unwritten, IsTruncate));
    absl::Status status = mixed ? absl::AbortedError("truncated") : Apply(run, sequence, entry);
    return IsConflict(status) || absl::IsAborted(status) ? forget(status.ToString()) : status;
  };
  for (const LogEntry& entry : stored->entries) {
    if (absl::Status status = apply(entry); !status.ok()) return status;
    if (IsTruncate(entry)) run.NoteShortened(name);
    log.bytes += HeapBytes(entry);
    ++log.next;
  }
  return absl::OkStatus();
}

void StoredCache::Note(SequenceLog& log, LogEntry entry) {
  entry.mark = marks_ += 1;
  log.unwritten.push_back(std::move(entry));
}

absl::Status StoredCache::Write(Run& run, const SequenceName& name, Sequence& sequence) {
  SequenceLog& log = LogOf(sequence);
  WriterLock writing(log.writing);
  if (log.forgotten) return absl::AbortedError("forgotten");
  for (;;) {
    std::vector<NewEntry> entries;
    {
      WriterLock order(log.order);
      const size_t count = std::min(log.unwritten.size(), kEntriesAtOnce);
      for (size_t i = 0; i < count; ++i) {
        entries.push_back({.sequence = IdentityOf(run, name),
                           .number = log.next + static_cast<uint32_t>(i),
                           .entry = log.unwritten[i],
                           .expires = ExpiryOf(run)});
      }
    }
    if (entries.empty()) return Shorten(run, name, sequence, log);
    const std::vector<absl::Status> statuses = store_.Append(entries);
    const auto failed =
        std::ranges::find_if(statuses, [](const absl::Status& status) { return !status.ok(); });
    const auto written = static_cast<uint32_t>(failed - statuses.begin());
    {
      WriterLock order(log.order);
      log.unwritten.erase(log.unwritten.begin(), log.unwritten.begin() + written);
    }
    log.next += written;
    for (uint32_t i = 0; i < written; ++i) log.bytes += HeapBytes(entries[i].entry);
    if (failed == statuses.end()) continue;
    if (!IsConflict(*failed)) return *failed;
    const uint32_t before = log.next;
    if (absl::Status status = CatchUp(run, name, sequence, log); !status.ok()) return status;
    if (log.next == before) return absl::UnavailableError("the store changes: try again");
  }
}

absl::StatusOr<bool> StoredCache::Follow(Run& run, const SequenceName& name, Sequence& sequence) {
  if (!store_.shared()) return false;
  SequenceLog& log = LogOf(sequence);
  WriterLock writing(log.writing);
  const uint32_t before = log.next;
  const absl::Status status = CatchUp(run, name, sequence, log);
  if (absl::IsAborted(status) || absl::IsFailedPrecondition(status)) return true;
  if (!status.ok()) return status;
  return log.next != before;
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

absl::Status StoredCache::Seal(Run& run, const SequenceName& name, Sequence& sequence) {
  SequenceLog& log = LogOf(sequence);
  WriterLock writing(log.writing);
  return WriteWholeForm(run, name, sequence, log);
}

absl::Status StoredCache::Shorten(Run& run, const SequenceName& name, Sequence& sequence,
                                  SequenceLog& log) {
  if (log.bytes <= kShortLog + kMostTimes * run.BytesOf(name)) return absl::OkStatus();
  const absl::Status written = WriteWholeForm(run, name, sequence, log);
  // Memory has a damaged page; the log doesn't.
  return absl::IsDataLoss(written) ? absl::OkStatus() : written;
}

absl::Status StoredCache::WriteWholeForm(Run& run, const SequenceName& name, Sequence& sequence,
                                         SequenceLog& log) {
  absl::StatusOr<std::string> form;
  {
    WriterLock order(log.order);
    // What isn't stored yet isn't part of it.
    if (log.forgotten || !log.unwritten.empty()) return absl::OkStatus();
    form = WholeForm(sequence);
  }
  if (!form.ok()) return form.status();
  const absl::Status written =
      store_.WriteWholeForm(IdentityOf(run, name), log.next, *form, ExpiryOf(run));
  if (written.ok()) log.bytes = 0;
  return written;
}

}  // namespace sis
