#include "server/store/rocksdb/rocksdb_store.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/item.h"

namespace sis {
namespace {

using Batch = RocksDbDatabase::Batch;
using Items = RocksDbDatabase::Items;
using Room = RocksDbDatabase::Room;

// Time for which the record of a deleted run is kept. Until then a run of the same id gets a later
// incarnation, and late workers of the deleted one are refused.
constexpr absl::Duration kDeletionKept = absl::Hours(30 * 24);

uint64_t EndOf(const StoredPart& part) { return uint64_t{part.position} + part.count; }

absl::StatusOr<StoredPart> PartAt(const Items& items) {
  const absl::StatusOr<std::string_view> payload = UnwrapItem(items.key(), items.value());
  return payload.ok() ? ParsePart(*payload) : payload.status();
}

absl::StatusOr<uint8_t> ReasonAt(const Items& items) {
  const absl::StatusOr<std::string_view> reason = UnwrapItem(items.key(), items.value());
  if (!reason.ok()) return reason.status();
  if (reason->size() != 1) return absl::DataLossError("a reason that is no byte");
  return static_cast<uint8_t>(reason->front());
}

absl::StatusOr<StoredRun> ReadRun(std::string_view key, std::string_view item) {
  const absl::StatusOr<std::string_view> payload = UnwrapItem(key, item);
  absl::StatusOr<StoredRun> run = payload.ok() ? ParseRun(*payload) : payload.status();
  if (run.ok()) run->run_id = std::string(key.substr(kRunKeys.size()));
  return run;
}

// The changes of one batch to the parts of a sequence.
class SequenceChange {
 public:
  SequenceChange(const RocksDbDatabase& database, const SequenceIdentity& sequence, Batch& batch)
      : sequence_(sequence),
        prefix_(SequencePrefix(sequence)),
        items_(database, prefix_, EndOfPrefix(prefix_)),
        batch_(batch) {}

  // Must be called first. Returns FailedPrecondition if the sequence was dropped. All parts expire
  // at the same time, so that a sequence is never partly expired.
  absl::Status KeepUntil(absl::Time expires) {
    expires_ = expires;
    if (!items_.valid()) return items_.status();
    if (items_.key() == TombstoneKey(prefix_)) {
      const absl::StatusOr<uint8_t> reason = ReasonAt(items_);
      if (!reason.ok()) return reason.status();
      return absl::FailedPreconditionError(
          absl::StrCat(ToString(sequence_), " was dropped (", *reason, ")"));
    }
    const absl::Time before = ItemExpires(items_.value());
    if (before >= expires) {
      expires_ = before;
      return absl::OkStatus();
    }
    // Extends by more than requested, so that not every call rewrites all parts.
    if (expires != absl::InfiniteFuture()) expires_ += expires - absl::Now();
    for (; items_.valid(); items_.Next()) {
      const absl::StatusOr<std::string_view> payload = UnwrapItem(items_.key(), items_.value());
      if (!payload.ok()) return payload.status();
      batch_.Put(items_.key(), WrapItem(items_.key(), expires_, *payload));
    }
    return items_.status();
  }

  absl::Status Put(const StoredPart& part) {
    if (part.kind == StoredPart::Kind::kSeal) {
      const absl::StatusOr<std::optional<StoredPart>> stored = Find(PartKey(prefix_, part));
      if (!stored.ok()) return stored.status();
      if (stored->has_value() && (*stored)->position != part.position) {
        return absl::FailedPreconditionError(absl::StrCat(ToString(sequence_), ": a seal at ",
                                                          part.position, ", but it is sealed at ",
                                                          (*stored)->position));
      }
    } else if (part.kind == StoredPart::Kind::kBlock) {
      const absl::StatusOr<std::optional<StoredPart>> stored = LastBlockBefore(EndOf(part));
      if (!stored.ok()) return stored.status();
      if (stored->has_value() && EndOf(**stored) > part.position) {
        return **stored == part ? absl::OkStatus() : Overlaps(part, **stored);
      }
    }
    return Write(part);
  }

  absl::Status Merge(const StoredPart& block) {
    for (uint64_t end = EndOf(block);;) {
      const absl::StatusOr<std::optional<StoredPart>> stored = LastBlockBefore(end);
      if (!stored.ok()) return stored.status();
      if (!stored->has_value() || EndOf(**stored) <= block.position) return Write(block);
      if ((*stored)->position < block.position || EndOf(**stored) > EndOf(block)) {
        return Overlaps(block, **stored);
      }
      batch_.Remove(items_.key(), items_.value());
      end = (*stored)->position;
    }
  }

  // Returns true if the sequence had parts.
  bool Drop(uint8_t reason, absl::Time expires) {
    const std::string tombstone = TombstoneKey(prefix_);
    if (items_.valid() && items_.key() == tombstone && ReasonAt(items_).ok()) return false;
    const bool had_parts = items_.valid();
    for (; items_.valid(); items_.Next()) batch_.Remove(items_.key(), items_.value());
    const char byte = static_cast<char>(reason);
    batch_.Put(tombstone, WrapItem(tombstone, expires, {&byte, 1}));
    return had_parts;
  }
  absl::Status status() const { return items_.status(); }

 private:
  absl::Status Overlaps(const StoredPart& part, const StoredPart& stored) const {
    return absl::AlreadyExistsError(
        absl::StrCat(ToString(sequence_), ": ", part.count, " positions from ", part.position,
                     " overlap a stored block of ", stored.count, " from ", stored.position));
  }

  absl::StatusOr<std::optional<StoredPart>> Find(const std::string& key) {
    items_.Seek(key);
    if (absl::Status status = items_.status(); !status.ok()) return status;
    if (!items_.valid() || items_.key() != key) return std::nullopt;
    return PartAt(items_);
  }

  // Returns the last block that begins before the position. items_ then points to it.
  absl::StatusOr<std::optional<StoredPart>> LastBlockBefore(uint64_t position) {
    const std::string blocks = BlocksPrefix(prefix_);
    items_.SeekBefore(position > UINT32_MAX
                          ? EndOfPrefix(blocks)
                          : PartKey(prefix_, {.position = static_cast<uint32_t>(position)}));
    if (absl::Status status = items_.status(); !status.ok()) return status;
    if (!items_.valid() || !items_.key().starts_with(blocks)) return std::nullopt;
    return PartAt(items_);
  }

  absl::Status Write(const StoredPart& part) {
    const std::string key = PartKey(prefix_, part);
    batch_.Put(key, WrapItem(key, expires_, EncodePart(part)));
    return absl::OkStatus();
  }

  const SequenceIdentity& sequence_;
  const std::string prefix_;
  Items items_;
  Batch& batch_;
  absl::Time expires_;
};

class RocksDbStore final : public Store {
 public:
  RocksDbStore(const std::string& directory, bool sync) : database_(directory, sync) {}

  absl::Status Open() {
    if (absl::Status status = database_.Open(); !status.ok()) return status;
    return RemoveLeftOver();
  }

  bool shared() const override { return false; }
  absl::Status CanPut() override { return database_.CanAdd(); }

  absl::Status Put(const SequenceIdentity& sequence, std::span<const StoredPart> parts,
                   absl::Time expires) override {
    return ForEach(sequence, parts, expires, &SequenceChange::Put);
  }
  absl::Status Merge(const SequenceIdentity& sequence, std::span<const StoredPart> blocks,
                     absl::Time expires) override {
    return ForEach(sequence, blocks, expires, &SequenceChange::Merge);
  }

  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override {
    const std::string prefix = SequencePrefix(sequence);
    const auto damaged = [&](const absl::Status& why) {
      return absl::Status(why.code(), absl::StrCat(ToString(sequence), ": ", why.message()));
    };
    StoredSequence stored;
    Items items(database_, prefix, EndOfPrefix(prefix));
    if (items.valid() && items.key() == TombstoneKey(prefix)) {
      const absl::StatusOr<uint8_t> reason = ReasonAt(items);
      if (!reason.ok()) return damaged(reason.status());
      stored.dropped = *reason;
      return stored;
    }
    for (; items.valid(); items.Next()) {
      absl::StatusOr<StoredPart> part = PartAt(items);
      if (!part.ok()) return damaged(part.status());
      stored.parts.push_back(*std::move(part));
    }
    if (absl::Status status = items.status(); !status.ok()) return damaged(status);
    if (stored.parts.empty()) return absl::NotFoundError("nothing is stored");
    return stored;
  }

  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override {
    std::vector<bool> had_parts;
    absl::Status status = database_.Write(Room::kToRemove, [&](Batch& batch) -> absl::Status {
      for (const DroppedSequence& dropped : sequences) {
        SequenceChange change(database_, dropped.sequence, batch);
        had_parts.push_back(change.Drop(dropped.reason, expires));
        if (absl::Status read = change.status(); !read.ok()) return read;
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return had_parts;
  }

  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override {
    StoredRun stays;
    absl::Status status = database_.Write(Room::kToRemove, [&](Batch& batch) -> absl::Status {
      const absl::StatusOr<StoredRun> there = GetRun(run.run_id);
      if (absl::IsUnavailable(there.status())) return there.status();
      stays = there.ok() ? Merged(*there, run) : run;
      if (there.ok() && stays == *there) return absl::OkStatus();
      const absl::Time expires =
          stays.deleted() ? absl::Now() + kDeletionKept : absl::InfiniteFuture();
      const std::string key = RunKey(run.run_id);
      batch.Put(key, WrapItem(key, expires, EncodeRun(stays)));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return stays;
  }

  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    const std::string key = RunKey(run_id);
    const absl::StatusOr<std::string> item = database_.Get(key);
    return item.ok() ? ReadRun(key, *item) : item.status();
  }

  absl::StatusOr<ListedRuns> ListRuns() override {
    ListedRuns listed;
    const std::string prefix(kRunKeys);
    Items items(database_, prefix, EndOfPrefix(prefix));
    for (; items.valid(); items.Next()) {
      absl::StatusOr<StoredRun> run = ReadRun(items.key(), items.value());
      if (run.ok()) {
        listed.runs.push_back(*std::move(run));
      } else {
        listed.unreadable.emplace_back(items.key().substr(kRunKeys.size()), run.status());
      }
    }
    if (absl::Status status = items.status(/*repairs=*/true); !status.ok()) return status;
    return listed;
  }

  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    return database_.RemoveRange(IncarnationPrefix(run_id, first), IncarnationPrefix(run_id, last));
  }

  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot) override {
    return database_.Write(Room::kToRemove, [&](Batch& batch) {
      for (const auto& [slot, payload] : by_slot) {
        const std::string key = StepKey(run_id, incarnation, slot);
        batch.Put(key, WrapItem(key, absl::InfiniteFuture(), payload));
      }
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation) override {
    std::vector<absl::StatusOr<std::string>> payloads;
    const std::string prefix = StepsPrefix(run_id, incarnation);
    Items items(database_, prefix, EndOfPrefix(prefix));
    for (; items.valid(); items.Next()) {
      const absl::StatusOr<std::string_view> payload = UnwrapItem(items.key(), items.value());
      if (payload.ok()) {
        payloads.emplace_back(std::string(*payload));
      } else {
        payloads.emplace_back(payload.status());
      }
    }
    if (absl::Status status = items.status(/*repairs=*/true); !status.ok()) return status;
    return payloads;
  }

 private:
  absl::Status ForEach(const SequenceIdentity& sequence, std::span<const StoredPart> parts,
                       absl::Time expires,
                       absl::Status (SequenceChange::*change_by)(const StoredPart&)) {
    return database_.Write(Room::kToAdd, [&](Batch& batch) -> absl::Status {
      SequenceChange change(database_, sequence, batch);
      absl::Status status = change.KeepUntil(expires);
      for (const StoredPart& part : parts) {
        if (!status.ok()) return status;
        status = (change.*change_by)(part);
      }
      return status;
    });
  }

  // Removes data of superseded and deleted incarnations that was written late or could not be
  // removed then. On a full disk a later opening does it.
  absl::Status RemoveLeftOver() {
    const std::string prefix(kSequenceKeys);
    Items items(database_, prefix, EndOfPrefix(prefix));
    while (items.valid()) {
      const auto found = IncarnationOfKey(items.key());
      if (!found.has_value()) {
        items.Next();
        continue;
      }
      const auto& [run_id, incarnation] = *found;
      const absl::StatusOr<StoredRun> run = GetRun(run_id);
      const bool is_past = run.ok() && incarnation < run->incarnation + run->deleted();
      if (is_past) {
        absl::Status removed = DropIncarnations(run_id, incarnation, incarnation + 1);
        if (!removed.ok() && !absl::IsResourceExhausted(removed)) return removed;
      }
      items.Seek(EndOfPrefix(IncarnationPrefix(run_id, incarnation)));
    }
    return items.status(/*repairs=*/true);
  }

  RocksDbDatabase database_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenRocksDb(const std::string& directory, bool sync) {
  auto store = std::make_unique<RocksDbStore>(directory, sync);
  if (absl::Status status = store->Open(); !status.ok()) {
    const bool opens_again = absl::IsDataLoss(status);
    return absl::Status(opens_again ? status.code() : absl::StatusCode::kUnavailable,
                        absl::StrCat(directory, ": ", status.message()));
  }
  return store;
}

int64_t DamagedRocksDbFiles(const std::string& directory) {
  std::error_code none;
  int64_t tables = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory + "/lost", none)) {
    tables += file.path().extension() == ".sst" ? 1 : 0;
  }
  return tables;
}

}  // namespace sis
