#include "server/store/rocksdb/database.h"

#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/file_system.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/iterator.h>
#include <rocksdb/table.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

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
// Maximum age of a table. Older ones are rewritten, so that removed and expired items neither
// occupy space nor slow down starts for longer.
constexpr uint64_t kOldestTableSeconds = 24 * 60 * 60;
// Maximum number of keys that one write removes.
constexpr size_t kRemovedAtOnce = 1000;
// RocksDB uses at most one part in kPartOfDescriptors of the process's file descriptors.
constexpr int kMaxFiles = 512;
constexpr int kPartOfDescriptors = 4;

absl::Status FromRocksDb(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.IsNotFound()) return absl::NotFoundError("nothing is stored");
  const std::string message = absl::StrCat("rocksdb: ", status.ToString());
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

// A value has the time of expiry in seconds, 0 for never, and the payload.
constexpr size_t kPayloadBegin = sizeof(int64_t);

absl::Time ExpiresAt(const rocksdb::Slice& value) {
  int64_t seconds = 0;
  if (value.size() >= kPayloadBegin) std::memcpy(&seconds, value.data(), kPayloadBegin);
  return seconds == 0 ? absl::InfiniteFuture() : absl::FromUnixSeconds(seconds);
}

bool Expired(const rocksdb::Slice& value) { return ExpiresAt(value) <= absl::Now(); }

absl::string_view PayloadOf(const rocksdb::Slice& value) {
  return absl::string_view(value.data(), value.size())
      .substr(std::min(value.size(), kPayloadBegin));
}

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

rocksdb::Slice ToSlice(std::string_view view) { return {view.data(), view.size()}; }

class RemoveExpired final : public rocksdb::CompactionFilter {
 public:
  const char* Name() const override { return "sis.RemoveExpired"; }
  bool Filter(int, const rocksdb::Slice&, const rocksdb::Slice& value, std::string*,
              bool*) const override {
    return Expired(value);
  }
};

// Disables preallocation of tables. A merge that results in a few kilobytes would otherwise
// allocate 70 MB, which a full disk lacks. RocksDB's log still preallocates, so that a logged write
// always has space.
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

}  // namespace

void RocksDbDatabase::Removed::Add(const Removed& other) {
  if (other.bytes == 0) return;
  if (bytes == 0 || other.first < first) first = other.first;
  if (bytes == 0 || other.last > last) last = other.last;
  bytes += other.bytes;
}

void RocksDbDatabase::Batch::Put(std::string_view key, absl::Time expires,
                                 std::string_view payload) {
  const int64_t seconds =
      expires == absl::InfiniteFuture() ? 0 : std::max<int64_t>(1, absl::ToUnixSeconds(expires));
  std::string value(reinterpret_cast<const char*>(&seconds), kPayloadBegin);
  value.append(payload);
  writes_.Put(ToSlice(key), value);
}

void RocksDbDatabase::Batch::Remove(std::string_view key, size_t bytes) {
  writes_.Delete(ToSlice(key));
  removed_.Add({key.size() + bytes, std::string(key), std::string(key)});
}

RocksDbDatabase::RocksDbDatabase(const std::string& directory, bool sync)
    : directory_(directory),
      remove_expired_(std::make_unique<RemoveExpired>()),
      env_(rocksdb::NewCompositeEnv(std::make_shared<TablesTakeWhatTheyHold>())) {
  write_.sync = sync;
}

absl::Status RocksDbDatabase::Open() {
  WriterLock lock(mutex_);
  const absl::Status room = HasRoom(Room::kToRemove);
  absl::Status opened = room;
  if (room.ok()) {
    opened = std::filesystem::exists(repair_) ? RepairAndOpen() : OpenToWrite();
    if (absl::IsDataLoss(opened)) opened = RepairAndOpen();
  }
  // RocksDB's own writes during the opening may have filled the disk.
  if (opened.ok() || HasRoom(Room::kToAdd).ok()) return opened;
  rocksdb::DB* db = nullptr;
  if (!rocksdb::DB::OpenForReadOnly(Options(), directory_, &db).ok()) return opened;
  Use(db);
  read_only_ = true;
  return absl::OkStatus();
}

absl::Status RocksDbDatabase::CanAdd() {
  WriterLock lock(mutex_);
  if (absl::Status status = PrepareToWrite(Room::kToAdd); !status.ok()) {
    if (absl::IsResourceExhausted(status)) MergeRemovedBehind();
    return status;
  }
  KeepReserve();
  return absl::OkStatus();
}

absl::Status RocksDbDatabase::Write(Room room, absl::FunctionRef<absl::Status(Batch&)> fill) {
  WriterLock lock(mutex_);
  Batch batch;
  if (absl::Status status = fill(batch); !status.ok()) return status;
  return batch.writes_.Count() == 0 ? absl::OkStatus() : Write(room, batch);
}

absl::Status RocksDbDatabase::Write(Room room, Batch& batch) {
  if (absl::Status status = PrepareToWrite(room); !status.ok()) return status;
  absl::Status status = FromRocksDb(Database()->Write(write_, &batch.writes_));
  // RocksDB refuses all writes after it found a damaged table in a merge.
  if (absl::IsDataLoss(status)) RepairNextTime();
  if (status.ok()) removed_.Add(batch.removed_);
  return status;
}

// Removes key by key. After a range deletion RocksDB would examine the range at every read, until
// it merges the tables.
absl::Status RocksDbDatabase::RemoveRange(const std::string& first, const std::string& last) {
  const rocksdb::Slice begin(first), end(last);
  std::shared_ptr<rocksdb::DB> db;
  {
    WriterLock lock(mutex_);
    if (absl::Status status = PrepareToWrite(Room::kToRemove); !status.ok()) return status;
    db = Database();
    // Deletes complete tables without reading them.
    const rocksdb::Status removed = rocksdb::DeleteFilesInRange(
        db.get(), db->DefaultColumnFamily(), &begin, &end, /*include_end=*/false);
    if (!removed.ok()) return FromRocksDb(removed);
  }
  rocksdb::ReadOptions to_end;
  to_end.iterate_upper_bound = &end;
  to_end.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(to_end));
  it->Seek(begin);
  while (it->Valid()) {
    Batch batch;
    for (; it->Valid() && batch.writes_.Count() < kRemovedAtOnce; it->Next()) {
      batch.Remove(ToView(it->key()), it->value().size());
    }
    WriterLock lock(mutex_);
    if (absl::Status status = Write(Room::kToRemove, batch); !status.ok()) return status;
  }
  return FromRocksDb(it->status());
}

absl::StatusOr<RocksDbDatabase::Item> RocksDbDatabase::Get(std::string_view key) const {
  std::string value;
  const rocksdb::Status status = Database()->Get(rocksdb::ReadOptions(), ToSlice(key), &value);
  if (!status.ok()) return FromRocksDb(status);
  if (Expired(value)) return absl::NotFoundError("expired");
  return Item{ExpiresAt(value), std::string(PayloadOf(value))};
}

absl::StatusOr<std::vector<std::string>> RocksDbDatabase::ForEach(const std::string& prefix,
                                                                  Visitor visit) const {
  std::string end = prefix;
  ++end.back();
  const rocksdb::Slice end_slice(end);
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &end_slice;
  const std::shared_ptr<rocksdb::DB> db = Database();
  std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(options));
  std::vector<std::string> damaged;
  for (it->Seek(prefix); it->Valid(); it->Next()) {
    if (Expired(it->value())) continue;
    visit(ToView(it->key()).substr(prefix.size()), PayloadOf(it->value()));
  }
  if (!it->status().IsCorruption()) {
    if (absl::Status status = FromRocksDb(it->status()); !status.ok()) return status;
    return damaged;
  }
  // Finds the keys without checksums, and reads each value with its own.
  options.verify_checksums = false;
  options.fill_cache = false;
  it.reset(db->NewIterator(options));
  for (it->Seek(prefix); it->Valid(); it->Next()) {
    const std::string_view key = ToView(it->key()).substr(prefix.size());
    const absl::StatusOr<Item> item = Get(ToView(it->key()));
    if (item.ok()) visit(key, item->payload);
    if (absl::IsDataLoss(item.status())) damaged.emplace_back(key);
  }
  if (absl::Status status = FromRocksDb(it->status()); !status.ok()) return status;
  return damaged;
}

rocksdb::Options RocksDbDatabase::Options() const {
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
  options.compaction_filter = remove_expired_.get();
  options.compression = rocksdb::kNoCompression;  // log-probs hardly compress
  options.write_buffer_size = size_t{32} << 20;
  options.max_write_buffer_number = 3;
  options.env = env_.get();
  options.max_open_files = kMaxFiles;
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

absl::Status RocksDbDatabase::OpenToWrite() {
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(Options(), directory_, &db);
  if (!status.ok()) return FromRocksDb(status);
  Use(db);
  read_only_ = false;
  return absl::OkStatus();
}

absl::Status RocksDbDatabase::RepairAndOpen() {
  if (const rocksdb::Status status = rocksdb::RepairDB(directory_, Options()); !status.ok()) {
    return FromRocksDb(status);
  }
  unlink(repair_.c_str());
  return OpenToWrite();
}

void RocksDbDatabase::RepairNextTime() const { std::ofstream(repair_, std::ios::app); }

void RocksDbDatabase::Use(rocksdb::DB* db) {
  std::shared_ptr<rocksdb::DB> next(db);
  WriterLock lock(db_mutex_);
  db_.swap(next);
}

std::shared_ptr<rocksdb::DB> RocksDbDatabase::Database() const {
  ReaderLock lock(db_mutex_);
  return db_;
}

uint64_t RocksDbDatabase::FreeBytes() const {
  struct statvfs files;
  if (statvfs(directory_.c_str(), &files) != 0) return UINT64_MAX;
  return uint64_t{files.f_bavail} * files.f_frsize;
}

uint64_t RocksDbDatabase::LeastFree(Room room) const {
  if (room == Room::kToRemove) return kFreeToWrite;
  return reserve_given_up_ ? kFreeToAdd + kReserve : kFreeToAdd;
}

absl::Status RocksDbDatabase::HasRoom(Room room) {
  uint64_t free = FreeBytes();
  if (room == Room::kToRemove && free < kFreeToWrite && unlink(reserve_.c_str()) == 0) {
    reserve_given_up_ = true;
    free = FreeBytes();
  }
  if (free >= LeastFree(room)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("rocksdb: ", directory_, " has ", free,
                                                   " bytes free, less than ", LeastFree(room)));
}

void RocksDbDatabase::KeepReserve() {
  if (access(reserve_.c_str(), F_OK) == 0 || FreeBytes() < kFreeToAdd + kReserve) return;
  const int file = open(reserve_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) return;
  reserve_given_up_ = posix_fallocate(file, 0, kReserve) != 0;
  close(file);
  if (reserve_given_up_) unlink(reserve_.c_str());
}

void RocksDbDatabase::MergeRemovedBehind() {
  if (read_only_ || merging_ || FreeBytes() + removed_.bytes < LeastFree(Room::kToAdd)) return;
  if (!HasRoom(Room::kToRemove).ok()) return;
  merging_ = true;
  behind_.Schedule("", [this, db = Database(), removed = std::exchange(removed_, {})] {
    rocksdb::CompactRangeOptions options;
    options.exclusive_manual_compaction = false;
    options.canceled = &merging_ends_;
    const rocksdb::Slice first(removed.first), last(removed.last);
    const rocksdb::Status merged = db->CompactRange(options, &first, &last);
    WriterLock lock(mutex_);
    merging_ = false;
    if (merged.ok() || merging_ends_) return;
    // Merging probably needs space itself. It gets the reserve, and is retried.
    removed_.Add(removed);
    if (unlink(reserve_.c_str()) == 0) reserve_given_up_ = true;
  });
}

absl::Status RocksDbDatabase::PrepareToWrite(Room room) {
  if (absl::Status status = HasRoom(room); !status.ok()) return status;
  return read_only_ ? OpenToWrite() : absl::OkStatus();
}

}  // namespace sis
