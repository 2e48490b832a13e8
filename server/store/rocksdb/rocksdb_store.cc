#include "server/store/rocksdb/rocksdb_store.h"

#include <fcntl.h>
#include <rocksdb/compaction_filter.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "server/store/hash_store.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {
namespace {

// Minimum free bytes of the file system to add items, and to write at all. So removing remains
// possible for longer than adding. RocksDB itself must never run out of space: afterwards it
// refuses writes for seconds, and version 7.8 may abort the process (an assertion fails at the
// first write to a log after a failed one).
constexpr uint64_t kFreeToAdd = uint64_t{128} << 20;
constexpr uint64_t kFreeToWrite = uint64_t{64} << 20;
// Size of a file that reserves space next to the database, in bytes. It is deleted when other
// programs have filled the disk, so that removing remains possible, even after a restart.
constexpr uint64_t kReserve = uint64_t{128} << 20;
// Maximum size of a table. RocksDB allocates a merged table before it writes, however small it
// becomes, and must find this space on a nearly full disk.
constexpr uint64_t kMaxTableBytes = uint64_t{32} << 20;
// Maximum age of a table. Older ones are rewritten, so that removed and expired items neither
// occupy space nor slow down starts for longer.
constexpr uint64_t kOldestTableSeconds = 24 * 60 * 60;
// Maximum number of files that RocksDB keeps open. Connections need descriptors too.
constexpr int kMaxFiles = 512;
// Maximum number of keys that one write removes.
constexpr uint32_t kRemovedAtOnce = 1000;

absl::Status FromRocksDb(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.IsNotFound()) return absl::NotFoundError("nothing is stored");
  const std::string message = absl::StrCat("rocksdb: ", status.ToString());
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

absl::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Every field of a hash is an item. All expire at the same time.
std::string ItemKey(absl::string_view hash, absl::string_view field) {
  return absl::StrCat(hash, "/", field);
}

// An item's value has the time of expiry in seconds, 0 for never, and the payload.
constexpr size_t kPayloadBegin = sizeof(int64_t);

absl::Time ExpiresAt(const rocksdb::Slice& value) {
  int64_t seconds = 0;
  if (value.size() >= kPayloadBegin) std::memcpy(&seconds, value.data(), kPayloadBegin);
  return seconds == 0 ? absl::InfiniteFuture() : absl::FromUnixSeconds(seconds);
}

bool Expired(const rocksdb::Slice& value) { return ExpiresAt(value) <= absl::Now(); }

std::string PayloadOf(const rocksdb::Slice& value) {
  return std::string(ToView(value).substr(std::min(value.size(), kPayloadBegin)));
}

class RemoveExpired final : public rocksdb::CompactionFilter {
 public:
  const char* Name() const override { return "sis.RemoveExpired"; }
  bool Filter(int, const rocksdb::Slice&, const rocksdb::Slice& value, std::string*,
              bool*) const override {
    return Expired(value);
  }
};

// The space on the disk of a directory. Thread-safe.
class DiskSpace {
 public:
  explicit DiskSpace(const std::string& directory) : directory_(directory) {}

  // Returns the free bytes of the file system, or the maximum if they are unknown.
  uint64_t Free() const {
    struct statvfs files;
    if (statvfs(directory_.c_str(), &files) != 0) return UINT64_MAX;
    return uint64_t{files.f_bavail} * files.f_frsize;
  }

  // Returns the bytes that must be free for a write. Adding must not use the released reserve.
  uint64_t Least(bool when_full) const {
    if (when_full) return kFreeToWrite;
    return access(reserve_.c_str(), F_OK) == 0 ? kFreeToAdd : kFreeToAdd + kReserve;
  }

  // Returns OK if there is space for a write. Gives the reserve up if a write that must be executed
  // when the disk is full needs it.
  absl::Status Check(bool when_full) const {
    uint64_t free = Free();
    if (when_full && free < kFreeToWrite && GiveUpReserve()) free = Free();
    if (free >= Least(when_full)) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("rocksdb: ", directory_, " has ", free,
                                                     " bytes free, less than ", Least(when_full)));
  }

  void KeepReserve() const {
    if (Free() < Least(/*when_full=*/false) || access(reserve_.c_str(), F_OK) == 0) return;
    const int file = open(reserve_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (posix_fallocate(file, 0, kReserve) != 0) GiveUpReserve();
    close(file);
  }

  // Returns false if there is none.
  bool GiveUpReserve() const { return unlink(reserve_.c_str()) == 0; }

 private:
  const std::string directory_;
  const std::string reserve_ = directory_ + "/reserve";
};

// The size and the range of keys of removed items.
struct Removed {
  uint64_t bytes = 0;
  std::string first = {}, last = {};

  void Add(const Removed& other) {
    if (other.bytes == 0) return;
    if (bytes == 0 || other.first < first) first = other.first;
    if (bytes == 0 || other.last > last) last = other.last;
    bytes += other.bytes;
  }
};

struct Batch {
  rocksdb::WriteBatch writes;
  Removed removed = {};

  void Put(const std::string& key, absl::Time expires, absl::string_view payload) {
    const int64_t seconds =
        expires == absl::InfiniteFuture() ? 0 : std::max<int64_t>(1, absl::ToUnixSeconds(expires));
    const absl::string_view begin(reinterpret_cast<const char*>(&seconds), kPayloadBegin);
    writes.Put(key, absl::StrCat(begin, payload));
  }
  // `bytes` is the size of the current payload, as far as it is known.
  void Remove(const std::string& key, size_t bytes) {
    writes.Delete(key);
    removed.Add({key.size() + bytes, key, key});
  }
};

// Tolerates a full disk and damaged files. If a damaged file prevents opening, listing or writing,
// the next opening moves unreadable tables to the folder `lost`, and serves the others.
class RocksDbStore final : public HashStore {
 public:
  RocksDbStore(const std::string& directory, bool sync)
      : HashStore(/*server_name=*/""), directory_(directory), space_(directory) {
    write_.sync = sync;
  }
  ~RocksDbStore() override { merging_ends_ = true; }

  absl::Status Open() {
    if (absl::Status status = space_.Check(/*when_full=*/true); !status.ok()) return status;
    absl::Status opened = std::filesystem::exists(repair_) ? RepairAndOpen() : OpenDatabase();
    if (absl::IsDataLoss(opened)) opened = RepairAndOpen();
    // Opening writes the log to tables.
    if (absl::IsResourceExhausted(opened) && space_.GiveUpReserve()) opened = OpenDatabase();
    if (!opened.ok()) return opened;
    absl::Status removed = RemoveLeftOver();
    if (absl::IsDataLoss(removed)) RepairNextTime();
    return removed;
  }

  bool shared() const override { return false; }

  absl::Status CanPut() override {
    space_.KeepReserve();
    absl::Status status = space_.Check(/*when_full=*/false);
    if (!status.ok()) MergeRemovedBehind();
    return status;
  }

  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override {
    WriterLock lock(mutex_);
    Batch batch;
    std::vector<bool> had_parts;
    for (const auto& [sequence, reason, revision] : sequences) {
      const std::string key = SequenceKey(sequence);
      const absl::StatusOr<Hash> hash = Read(key);
      if (!hash.ok()) return hash.status();
      const bool was_dropped = hash->fields.contains(std::string(kDroppedField));
      const auto there = hash->fields.find(std::string(kRevisionField));
      const bool is_changed = revision.has_value() && (there == hash->fields.end() ||
                                                       there->second != absl::StrCat(*revision));
      had_parts.push_back(!was_dropped && !is_changed &&
                          !(hash->fields.empty() && hash->damaged.empty()));
      if (was_dropped || is_changed) continue;
      for (const auto& [field, value] : hash->fields) {
        batch.Remove(ItemKey(key, field), value.size());
      }
      for (const std::string& field : hash->damaged) batch.Remove(ItemKey(key, field), 0);
      batch.Put(ItemKey(key, kDroppedField), expires, std::string(1, static_cast<char>(reason)));
      batch.Put(ItemKey(key, kRevisionField), expires, absl::StrCat(NewRevision()));
    }
    if (absl::Status status = Write(/*when_full=*/true, batch); !status.ok()) return status;
    return had_parts;
  }

  // Removes key by key. After a range deletion RocksDB would examine the range at every read, until
  // it merges the tables.
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    if (absl::Status status = space_.Check(/*when_full=*/true); !status.ok()) return status;
    const std::string first_key = IncarnationPrefix(run_id, first),
                      last_key = IncarnationPrefix(run_id, last);
    const rocksdb::Slice begin(first_key), end(last_key);
    // Deletes complete tables without reading them.
    const rocksdb::Status removed = rocksdb::DeleteFilesInRange(
        db_.get(), db_->DefaultColumnFamily(), &begin, &end, /*include_end=*/false);
    if (!removed.ok()) return FromRocksDb(removed);
    rocksdb::ReadOptions to_end;
    to_end.iterate_upper_bound = &end;
    to_end.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(to_end));
    it->Seek(begin);
    while (it->Valid()) {
      Batch batch;
      for (; it->Valid() && batch.writes.Count() < kRemovedAtOnce; it->Next()) {
        batch.Remove(it->key().ToString(), it->value().size());
      }
      WriterLock lock(mutex_);
      if (absl::Status status = Write(/*when_full=*/true, batch); !status.ok()) return status;
    }
    return FromRocksDb(it->status());
  }

 private:
  struct Item {
    absl::Time expires;
    std::string payload;
  };
  // Returns NotFound if there is none, or if it has expired.
  absl::StatusOr<Item> Get(const rocksdb::Slice& key) const {
    std::string value;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), key, &value);
    if (!status.ok()) return FromRocksDb(status);
    if (Expired(value)) return absl::NotFoundError("expired");
    return Item{ExpiresAt(value), PayloadOf(value)};
  }

  absl::StatusOr<Hash> Read(absl::string_view key) override {
    const std::string prefix = ItemKey(key, "");
    std::string end = prefix;
    ++end.back();
    const rocksdb::Slice end_slice(end);
    rocksdb::ReadOptions options;
    options.iterate_upper_bound = &end_slice;
    const auto field = [&](const rocksdb::Slice& item) {
      return std::string(ToView(item).substr(prefix.size()));
    };
    Hash hash;
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options));
    for (it->Seek(prefix); it->Valid(); it->Next()) {
      if (!Expired(it->value())) hash.fields.emplace(field(it->key()), PayloadOf(it->value()));
    }
    if (it->status().IsCorruption()) {
      // Finds the keys without checksums, and reads each value with its own.
      options.verify_checksums = false;
      options.fill_cache = false;
      it.reset(db_->NewIterator(options));
      for (it->Seek(prefix); it->Valid(); it->Next()) {
        absl::StatusOr<Item> item = Get(it->key());
        if (item.ok()) hash.fields.emplace(field(it->key()), std::move(item->payload));
        if (absl::IsDataLoss(item.status())) hash.damaged.push_back(field(it->key()));
      }
    }
    if (absl::Status status = FromRocksDb(it->status()); !status.ok()) return status;
    return hash;
  }

  absl::StatusOr<Fields> ReadFields(absl::string_view key,
                                    const std::vector<absl::string_view>& fields) override {
    Fields read;
    for (const absl::string_view field : fields) {
      absl::StatusOr<Item> item = Get(ItemKey(key, field));
      if (item.ok()) {
        read.emplace(field, std::move(item->payload));
      } else if (!absl::IsNotFound(item.status())) {
        return item.status();
      }
    }
    return read;
  }

  absl::Status Change(const HashChange& change) override {
    WriterLock lock(mutex_);
    const std::string revision = ItemKey(change.key, kRevisionField);
    const absl::StatusOr<Item> there = Get(revision);
    if (change.revision.has_value()) {
      if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
      if (absl::StrCat(*change.revision) != (there.ok() ? there->payload : "0")) {
        return absl::AbortedError("it has changed");
      }
    }
    Batch batch;
    absl::Time expires = change.expires;
    if (there.ok() && there->expires >= expires) {
      expires = there->expires;
    } else if (there.ok()) {
      // Extends by more than requested, so that not every call rewrites all fields.
      if (expires != absl::InfiniteFuture()) expires += expires - absl::Now();
      const absl::StatusOr<Hash> hash = Read(change.key);
      if (!hash.ok()) return hash.status();
      for (const auto& [field, value] : hash->fields) {
        batch.Put(ItemKey(change.key, field), expires, value);
      }
    }
    for (const std::string& field : change.removed) batch.Remove(ItemKey(change.key, field), 0);
    for (const auto& [field, value] : change.put) {
      batch.Put(ItemKey(change.key, field), expires, value);
    }
    batch.Put(revision, expires, absl::StrCat(change.next_revision));
    return Write(change.when_full, batch);
  }

  absl::Status Write(bool when_full, Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status status = space_.Check(when_full); !status.ok()) return status;
    absl::Status status = FromRocksDb(db_->Write(write_, &batch.writes));
    // RocksDB refuses all writes after it found a damaged table in a merge.
    if (absl::IsDataLoss(status)) RepairNextTime();
    if (status.ok()) removed_.Add(batch.removed);
    return status;
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

  // Merges tables if there is no space to add, and removed items occupy enough. RocksDB frees space
  // only when it merges tables, which it does only while it is written to.
  void MergeRemovedBehind() ABSL_LOCKS_EXCLUDED(mutex_) {
    WriterLock lock(mutex_);
    const uint64_t needed = space_.Least(/*when_full=*/false);
    if (merging_ || space_.Free() + removed_.bytes < needed) return;
    if (!space_.Check(/*when_full=*/true).ok()) return;
    merging_ = true;
    behind_.Schedule("", [this, removed = std::exchange(removed_, {})] {
      rocksdb::CompactRangeOptions options;
      options.exclusive_manual_compaction = false;
      options.canceled = &merging_ends_;
      const rocksdb::Slice first(removed.first), last(removed.last);
      const rocksdb::Status merged = db_->CompactRange(options, &first, &last);
      WriterLock lock(mutex_);
      merging_ = false;
      if (merged.ok() || merging_ends_) return;
      // Merging probably needs space itself. It gets the reserve, and is retried.
      removed_.Add(removed);
      space_.GiveUpReserve();
    });
  }

  rocksdb::Options Options() const {
    rocksdb::BlockBasedTableOptions table;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    table.block_cache = rocksdb::NewLRUCache(size_t{32} << 20);
    table.cache_index_and_filter_blocks = true;
    // RocksDB 9 writes format 6 by default, which 7.8 takes for damage. A downgrade to a
    // distribution's older RocksDB would then lose all data.
    table.format_version = 5;
    rocksdb::Options options;
    options.create_if_missing = true;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    options.compaction_filter = &remove_expired_;
    options.compression = rocksdb::kNoCompression;  // log-probs hardly compress
    options.write_buffer_size = size_t{32} << 20;
    options.max_write_buffer_number = 3;
    options.target_file_size_base = kMaxTableBytes;
    options.max_open_files = kMaxFiles;
    options.ttl = kOldestTableSeconds;
    options.periodic_compaction_seconds = kOldestTableSeconds;
    options.keep_log_file_num = 2;
    return options;
  }

  absl::Status OpenDatabase() {
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(Options(), directory_, &db);
    db_.reset(db);
    return FromRocksDb(status);
  }

  // Moves unreadable tables to the folder `lost`, reads all others, and makes a manifest of them.
  // Items that the lost tables replaced or removed may reappear.
  absl::Status RepairAndOpen() {
    if (const rocksdb::Status status = rocksdb::RepairDB(directory_, Options()); !status.ok()) {
      return FromRocksDb(status);
    }
    unlink(repair_.c_str());
    return OpenDatabase();
  }

  // A repair now would block all calls.
  void RepairNextTime() const { std::ofstream(repair_, std::ios::app); }

  const std::string directory_;
  // A file that exists if the next opening must repair the database.
  const std::string repair_ = directory_ + "/repair";
  const DiskSpace space_;
  const RemoveExpired remove_expired_;
  rocksdb::WriteOptions write_;
  std::unique_ptr<rocksdb::DB> db_;  // set by Open
  Mutex mutex_;                      // held to write
  // Items removed since tables were merged for space.
  Removed removed_ ABSL_GUARDED_BY(mutex_);
  bool merging_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> merging_ends_ = false;
  WorkerPool behind_{1};  // destroyed first
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
