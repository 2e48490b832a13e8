#include "server/store/items/rocksdb_items.h"

#include <fcntl.h>
#include <rocksdb/compaction_filter.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/stored_item.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {
namespace {

// Nothing is added, and nothing written at all, with less than this free on the file system. What
// removes can so go on for longer than what adds. RocksDB itself never runs out of room: after it
// has, it takes nothing for seconds when there is room again, and 7.8 may then end the process (the
// first write to a log that a write has failed on is a failed assertion).
constexpr uint64_t kFreeToAdd = uint64_t{128} << 20;
constexpr uint64_t kFreeToWrite = uint64_t{64} << 20;
// While there is room, a file of so many bytes lies beside the database. When others have filled
// the disk it is given up, so that what removes can go on, also after a restart there.
constexpr uint64_t kReserve = uint64_t{128} << 20;
// Tables are merged with others, or written again, once they are so old: what was removed and what
// has expired is not carried along, and not passed over at each start, for longer.
constexpr uint64_t kOldestTableSeconds = 24 * 60 * 60;
// Keys that are removed by one write.
constexpr size_t kRemovedAtOnce = 1000;
// Of the process's file descriptors RocksDB takes at most a part.
constexpr int kMostFiles = 512;
constexpr int kPartOfDescriptors = 4;

absl::Status FromRocksDb(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.IsNotFound()) return absl::NotFoundError("nothing is stored");
  const std::string message = absl::StrCat("rocksdb: ", status.ToString());
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

bool Expired(std::string_view value) { return ItemExpires(value) <= absl::Now(); }

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

class RemoveExpired final : public rocksdb::CompactionFilter {
 public:
  const char* Name() const override { return "sis.RemoveExpired"; }
  bool Filter(int, const rocksdb::Slice&, const rocksdb::Slice& value, std::string*,
              bool*) const override {
    return Expired(ToView(value));
  }
};

// Tables take what is in them, and no more beforehand. Else a merge whose result is a few kilobytes
// would take 70 MB for the time, which are missed on a full disk. RocksDB's log keeps that habit,
// so that what is logged always finds room.
class TablesTakeWhatTheyHold final : public rocksdb::FileSystemWrapper {
 public:
  TablesTakeWhatTheyHold() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "sis.TablesTakeWhatTheyHold"; }
  rocksdb::FileOptions OptimizeForCompactionTableWrite(
      const rocksdb::FileOptions& options,
      const rocksdb::ImmutableDBOptions& database) const override {
    rocksdb::FileOptions of_tables = target()->OptimizeForCompactionTableWrite(options, database);
    of_tables.allow_fallocate = false;
    return of_tables;
  }
};

// What was removed: how many bytes, and between which keys.
struct Removed {
  uint64_t bytes = 0;
  std::string first = {}, last = {};

  void Add(std::string_view key, std::string_view value) {
    Add({key.size() + value.size(), std::string(key), std::string(key)});
  }
  void Add(const Removed& other) {
    if (other.bytes == 0) return;
    if (bytes == 0 || other.first < first) first = other.first;
    if (bytes == 0 || other.last > last) last = other.last;
    bytes += other.bytes;
  }
};

class RocksDbItems final : public ItemStore {
 public:
  RocksDbItems(const std::string& directory, bool sync) : directory_(directory) {
    write_.sync = sync;
  }
  ~RocksDbItems() override { merging_ends_ = true; }

  // For reading alone where there is no room to write.
  absl::Status Open() {
    WriterLock lock(mutex_);
    const absl::Status room = HasRoom(kFreeToWrite);
    absl::Status opened = room;
    if (room.ok()) {
      opened = std::filesystem::exists(repair_) ? RepairAndOpen() : OpenToWrite();
      if (absl::IsDataLoss(opened)) opened = RepairAndOpen();
    }
    // What RocksDB writes when it opens may have taken the rest.
    if (opened.ok() || HasRoom(kFreeToAdd).ok()) return opened;
    rocksdb::DB* db = nullptr;
    if (!rocksdb::DB::OpenForReadOnly(Options(), directory_, &db).ok()) return opened;
    Use(db);
    read_only_ = true;
    return absl::OkStatus();
  }

  absl::Status CanAdd() override {
    WriterLock lock(mutex_);
    if (absl::Status status = PrepareToWrite(kFreeToAdd); !status.ok()) {
      if (absl::IsResourceExhausted(status)) MergeRemovedBehind();
      return status;
    }
    KeepReserve();
    return absl::OkStatus();
  }

  absl::Status Add(std::span<const Item> items) override { return Put(items, kFreeToAdd); }
  absl::Status Put(std::span<const Item> items) override { return Put(items, kFreeToWrite); }

  std::vector<absl::StatusOr<std::string>> Get(std::span<const std::string> keys) override {
    std::vector<absl::StatusOr<std::string>> values;
    for (const std::string& key : keys) values.push_back(Find(key));
    return values;
  }

  absl::StatusOr<size_t> Remove(std::span<const std::string> keys) override {
    rocksdb::WriteBatch batch;
    Removed removed;
    WriterLock lock(mutex_);
    for (const std::string& key : keys) {
      const absl::StatusOr<std::string> found = Find(key);
      if (absl::IsNotFound(found.status())) continue;
      if (!found.ok()) return found.status();
      batch.Delete(key);
      removed.Add(key, *found);
    }
    if (absl::Status status = Write(&batch, kFreeToWrite); !status.ok()) return status;
    removed_.Add(removed);
    return batch.Count();
  }

  // Key by key: RocksDB looks through all ranges that were ever removed whenever it reads, until
  // they are merged away.
  absl::Status RemoveRange(const std::string& first, const std::string& last) override {
    const rocksdb::Slice begin(first), end(last);
    std::shared_ptr<rocksdb::DB> db;
    {
      WriterLock lock(mutex_);
      if (absl::Status status = PrepareToWrite(kFreeToWrite); !status.ok()) return status;
      db = Database();
      // Whole tables go at once, and unread.
      rocksdb::Status removed = rocksdb::DeleteFilesInRange(db.get(), db->DefaultColumnFamily(),
                                                            &begin, &end, /*include_end=*/false);
      if (!removed.ok()) return FromRocksDb(removed);
    }
    rocksdb::ReadOptions to_end;
    to_end.iterate_upper_bound = &end;
    to_end.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(to_end));
    it->Seek(begin);
    while (it->Valid()) {
      rocksdb::WriteBatch batch;
      Removed removed;
      for (; it->Valid() && batch.Count() < kRemovedAtOnce; it->Next()) {
        batch.Delete(it->key());
        removed.Add(ToView(it->key()), ToView(it->value()));
      }
      WriterLock lock(mutex_);
      if (absl::Status status = Write(&batch, kFreeToWrite); !status.ok()) return status;
      removed_.Add(removed);
    }
    return FromRocksDb(it->status());
  }

  absl::Status Scan(
      const std::string& first,
      const std::function<std::string(std::string_view, std::string_view)>& visit) override {
    const std::shared_ptr<rocksdb::DB> db = Database();
    const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(rocksdb::ReadOptions()));
    it->Seek(first);
    while (it->Valid()) {
      if (Expired(ToView(it->value()))) {
        it->Next();
        continue;
      }
      const std::string next = visit(ToView(it->key()), ToView(it->value()));
      if (next.empty()) break;
      // Most often it is the neighbour, to whom a step is shorter.
      it->Next();
      if (it->Valid() && ToView(it->key()) < next) it->Seek(next);
    }
    const absl::Status status = FromRocksDb(it->status());
    if (absl::IsDataLoss(status)) RepairNextTime();
    return status;
  }

 private:
  rocksdb::Options Options() const {
    rocksdb::BlockBasedTableOptions table;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    table.block_cache = rocksdb::NewLRUCache(size_t{32} << 20);
    table.cache_index_and_filter_blocks = true;
    // RocksDB 9 would write 6, of which 7.8 says that it is damaged: who goes back to a server with
    // an older one, as distributions have it, would lose all.
    table.format_version = 5;
    rocksdb::Options options;
    options.create_if_missing = true;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    options.compaction_filter = &remove_expired_;
    options.compression = rocksdb::kNoCompression;  // log-probs hardly compress
    options.write_buffer_size = size_t{32} << 20;
    options.max_write_buffer_number = 3;
    options.env = env_.get();
    options.max_open_files = kMostFiles;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      options.max_open_files = static_cast<int>(
          std::min<rlim_t>(options.max_open_files, limit.rlim_cur / kPartOfDescriptors));
    }
    options.ttl = kOldestTableSeconds;
    options.periodic_compaction_seconds = kOldestTableSeconds;
    options.keep_log_file_num = 2;
    return options;
  }

  absl::Status OpenToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(Options(), directory_, &db);
    if (!status.ok()) return FromRocksDb(status);
    Use(db);
    read_only_ = false;
    return absl::OkStatus();
  }

  // Moves tables that can't be read to the folder `lost`, and makes a manifest of the others, all
  // of which it reads. What the lost ones replaced or removed may be there again.
  absl::Status RepairAndOpen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (const rocksdb::Status status = rocksdb::RepairDB(directory_, Options()); !status.ok()) {
      return FromRocksDb(status);
    }
    unlink(repair_.c_str());
    return OpenToWrite();
  }

  // When it is opened: while it is used everybody would have to wait.
  void RepairNextTime() const { std::ofstream(repair_, std::ios::app); }

  void Use(rocksdb::DB* db) ABSL_LOCKS_EXCLUDED(db_mutex_) {
    std::shared_ptr<rocksdb::DB> next(db);
    WriterLock lock(db_mutex_);
    db_.swap(next);
  }
  std::shared_ptr<rocksdb::DB> Database() const ABSL_LOCKS_EXCLUDED(db_mutex_) {
    ReaderLock lock(db_mutex_);
    return db_;
  }

  // Of the file system; as many as can be where it doesn't tell, or there is no directory yet.
  uint64_t FreeBytes() const {
    struct statvfs files;
    if (statvfs(directory_.c_str(), &files) != 0) return UINT64_MAX;
    return uint64_t{files.f_bavail} * files.f_frsize;
  }

  // To add. What adds doesn't get what was given up for what removes.
  uint64_t LeastFreeToAdd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return reserve_given_up_ ? kFreeToAdd + kReserve : kFreeToAdd;
  }

  // Gives up the reserve for what removes.
  absl::Status HasRoom(uint64_t least_free) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint64_t free = FreeBytes();
    if (least_free == kFreeToWrite && free < least_free && unlink(reserve_.c_str()) == 0) {
      reserve_given_up_ = true;
      free = FreeBytes();
    }
    if (least_free == kFreeToAdd) least_free = LeastFreeToAdd();
    if (free >= least_free) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("rocksdb: ", directory_, " has ", free,
                                                     " bytes free, less than ", least_free));
  }

  void KeepReserve() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (access(reserve_.c_str(), F_OK) == 0 || FreeBytes() < kFreeToAdd + kReserve) return;
    const int file = open(reserve_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0) return;
    reserve_given_up_ = posix_fallocate(file, 0, kReserve) != 0;
    close(file);
    if (reserve_given_up_) unlink(reserve_.c_str());
  }

  // Where there is no room to add, and what was removed would do. RocksDB gives its room back when
  // it merges tables, which it does as it is written to: so here never.
  void MergeRemovedBehind() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t free = FreeBytes();
    if (read_only_ || merging_ || free + removed_.bytes < LeastFreeToAdd()) return;
    if (!HasRoom(kFreeToWrite).ok()) return;
    merging_ = true;
    behind_.Schedule("", [this, db = Database(), removed = std::exchange(removed_, {})] {
      rocksdb::CompactRangeOptions options;
      options.exclusive_manual_compaction = false;
      options.canceled = &merging_ends_;
      const rocksdb::Slice first(removed.first), last(removed.last);
      // What fails, for want of room perhaps, is done by RocksDB itself in time.
      db->CompactRange(options, &first, &last).PermitUncheckedError();
      WriterLock lock(mutex_);
      merging_ = false;
    });
  }

  absl::Status PrepareToWrite(uint64_t least_free) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status status = HasRoom(least_free); !status.ok()) return status;
    return read_only_ ? OpenToWrite() : absl::OkStatus();
  }

  absl::Status Put(std::span<const Item> items, uint64_t least_free) {
    rocksdb::WriteBatch batch;
    for (const Item& item : items) batch.Put(item.key, item.value);
    WriterLock lock(mutex_);
    return Write(&batch, least_free);
  }

  absl::Status Write(rocksdb::WriteBatch* batch, uint64_t least_free)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (batch->Count() == 0) return absl::OkStatus();
    if (absl::Status status = PrepareToWrite(least_free); !status.ok()) return status;
    absl::Status status = FromRocksDb(Database()->Write(write_, batch));
    // A table was damaged that should have been merged with others: RocksDB writes no more.
    if (absl::IsDataLoss(status)) RepairNextTime();
    return status;
  }

  absl::StatusOr<std::string> Find(const std::string& key) const {
    std::string value;
    const rocksdb::Status status = Database()->Get(rocksdb::ReadOptions(), key, &value);
    if (!status.ok()) return FromRocksDb(status);
    if (Expired(value)) return absl::NotFoundError("expired");
    return value;
  }

  const std::string directory_;
  rocksdb::WriteOptions write_;
  const RemoveExpired remove_expired_;
  const std::unique_ptr<rocksdb::Env> env_ =
      rocksdb::NewCompositeEnv(std::make_shared<TablesTakeWhatTheyHold>());
  const std::string reserve_ = directory_ + "/reserve";
  // Is there if it is to be repaired when it is opened again.
  const std::string repair_ = directory_ + "/repair";
  Mutex mutex_;  // held to write
  // Whether it was opened on a full disk, for reading.
  bool read_only_ ABSL_GUARDED_BY(mutex_) = false;
  bool reserve_given_up_ ABSL_GUARDED_BY(mutex_) = false;
  // Since tables were merged for it last.
  Removed removed_ ABSL_GUARDED_BY(mutex_);
  bool merging_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> merging_ends_ = false;
  mutable Mutex db_mutex_;  // a leaf
  // Those who read keep the one that they began with.
  std::shared_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(db_mutex_);
  WorkerPool behind_{1};  // destroyed first
};

}  // namespace

absl::StatusOr<std::unique_ptr<ItemStore>> OpenRocksDbItems(const std::string& directory,
                                                            bool sync) {
  auto items = std::make_unique<RocksDbItems>(directory, sync);
  if (absl::Status status = items->Open(); !status.ok()) {
    return absl::UnavailableError(absl::StrCat(directory, ": ", status.message()));
  }
  return items;
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
