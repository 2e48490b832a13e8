#include "server/store/rocksdb/rocksdb_store.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/hash_store.h"
#include "server/store/rocksdb/database.h"

namespace sis {
namespace {

using Batch = RocksDbDatabase::Batch;
using Room = RocksDbDatabase::Room;

// The key of an item.
std::string ItemKey(absl::string_view hash, absl::string_view field) {
  return absl::StrCat(hash, "/", field);
}

// Every field of a hash is an item. All expire at the same time.
class RocksDbStore final : public HashStore {
 public:
  RocksDbStore(const std::string& directory, bool sync)
      : HashStore(/*server_name=*/""), database_(directory, sync) {}

  absl::Status Open() {
    if (absl::Status status = database_.Open(); !status.ok()) return status;
    absl::Status removed = RemoveLeftOver();
    if (absl::IsDataLoss(removed)) database_.RepairNextTime();
    return removed;
  }

  bool shared() const override { return false; }
  absl::Status CanPut() override { return database_.CanAdd(); }

  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override {
    std::vector<bool> had_parts;
    absl::Status status = database_.Write(Room::kToRemove, [&](Batch& batch) -> absl::Status {
      for (const auto& [sequence, reason] : sequences) {
        const std::string key = SequenceKey(sequence), tombstone = ItemKey(key, kDroppedField);
        bool had = false;
        if (!database_.Get(tombstone).ok()) {
          const auto damaged = database_.ForEach(
              ItemKey(key, ""), [&](std::string_view field, absl::string_view payload) {
                batch.Remove(ItemKey(key, {field.data(), field.size()}), payload.size());
                had = true;
              });
          if (!damaged.ok()) return damaged.status();
          for (const std::string& field : *damaged) batch.Remove(ItemKey(key, field), 0);
          batch.Put(tombstone, expires, {reinterpret_cast<const char*>(&reason), 1});
          batch.Put(ItemKey(key, kRevisionField), expires, absl::StrCat(NewRevision()));
        }
        had_parts.push_back(had);
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return had_parts;
  }

  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    return database_.RemoveRange(IncarnationPrefix(run_id, first), IncarnationPrefix(run_id, last));
  }

 private:
  absl::StatusOr<Hash> Read(absl::string_view key) override {
    Hash hash;
    auto damaged =
        database_.ForEach(ItemKey(key, ""), [&](std::string_view field, absl::string_view payload) {
          hash.fields.emplace(field, payload);
        });
    if (!damaged.ok()) return damaged.status();
    hash.damaged = *std::move(damaged);
    return hash;
  }

  absl::StatusOr<Fields> ReadFields(absl::string_view key,
                                    const std::vector<absl::string_view>& fields) override {
    Fields read;
    for (const absl::string_view field : fields) {
      absl::StatusOr<RocksDbDatabase::Item> item = database_.Get(ItemKey(key, field));
      if (item.ok()) {
        read.emplace(field, std::move(item->payload));
      } else if (!absl::IsNotFound(item.status())) {
        return item.status();
      }
    }
    return read;
  }

  absl::Status Change(const HashChange& change) override {
    const Room room = change.when_full ? Room::kToRemove : Room::kToAdd;
    return database_.Write(room, [&](Batch& batch) -> absl::Status {
      const std::string revision = ItemKey(change.key, kRevisionField);
      const absl::StatusOr<RocksDbDatabase::Item> there = database_.Get(revision);
      if (change.revision.has_value()) {
        if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
        if (absl::StrCat(*change.revision) != (there.ok() ? there->payload : "0")) {
          return absl::AbortedError("it has changed");
        }
      }
      absl::Time expires = change.expires;
      if (there.ok() && there->expires >= expires) {
        expires = there->expires;
      } else if (there.ok()) {
        // Extends by more than requested, so that not every call rewrites all fields.
        if (expires != absl::InfiniteFuture()) expires += expires - absl::Now();
        const auto read = database_.ForEach(
            ItemKey(change.key, ""), [&](std::string_view field, absl::string_view payload) {
              const std::string key = ItemKey(change.key, {field.data(), field.size()});
              batch.Put(key, expires, {payload.data(), payload.size()});
            });
        if (!read.ok()) return read.status();
      }
      for (const std::string& field : change.removed) batch.Remove(ItemKey(change.key, field), 0);
      for (const auto& [field, value] : change.put) {
        batch.Put(ItemKey(change.key, field), expires, {value.data(), value.size()});
      }
      batch.Put(revision, expires, absl::StrCat(change.next_revision));
      return absl::OkStatus();
    });
  }

  // Removes data of superseded and deleted incarnations that was written late or could not be
  // removed then. On a full disk a later opening does it.
  absl::Status RemoveLeftOver() {
    const absl::StatusOr<ListedRuns> listed = ListRuns();
    if (!listed.ok()) return listed.status();
    for (const StoredRun& run : listed->runs) {
      absl::Status removed =
          DropIncarnations(run.run_id, 0, run.incarnation + (run.deleted() ? 1 : 0));
      if (!removed.ok() && !absl::IsResourceExhausted(removed)) return removed;
    }
    return absl::OkStatus();
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
