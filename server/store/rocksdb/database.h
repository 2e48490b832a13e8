// A RocksDB of this machine that a full disk or a damaged file doesn't end.
//
// What is written survives the process (kill -9), and with `sync` the machine (a power cut) as
// well. Where the disk is nearly full, adding is ResourceExhausted; a little later so is all
// writing. What is there can be opened and read on a disk without any room. Where it couldn't be
// opened, listed or written for a damaged file, opening it (again) moves the tables that can't be
// read to its folder `lost`, and the rest is served.
#pragma once

#include <rocksdb/compaction_filter.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {

// Thread-safe. Values are those of WrapItem; what has expired is not there.
class RocksDbDatabase {
 public:
  RocksDbDatabase(const std::string& directory, bool sync);
  ~RocksDbDatabase() { merging_ends_ = true; }

  // Must be called before all others. For reading alone where there is no room to write.
  absl::Status Open() ABSL_LOCKS_EXCLUDED(mutex_);

  // OK, or why nothing can be added. Must be called now and then: the database is added to again
  // once it has room.
  absl::Status CanAdd() ABSL_LOCKS_EXCLUDED(mutex_);

  // What was removed: how many bytes, and between which keys.
  struct Removed {
    uint64_t bytes = 0;
    std::string first = {}, last = {};
    void Add(const Removed& other);
  };
  class Batch {
   public:
    void Put(std::string_view key, std::string_view value);
    // `value` is what is there.
    void Remove(std::string_view key, std::string_view value);

   private:
    friend class RocksDbDatabase;
    rocksdb::WriteBatch writes_;
    Removed removed_;
  };
  // Adding leaves room for what removes on a full disk.
  enum class Room { kToAdd, kToRemove };
  // Writes what `fill` puts into a batch, all or none, or nothing if it returns an error. Nobody
  // else writes meanwhile.
  absl::Status Write(Room room, absl::FunctionRef<absl::Status(Batch&)> fill)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes all keys in [first, last).
  absl::Status RemoveRange(const std::string& first, const std::string& last)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // NotFound if there is none.
  absl::StatusOr<std::string> Get(std::string_view key) const;

  // The items in [first, last) of one moment, in the order of their keys. Not thread-safe.
  class Items {
   public:
    // `database` must outlive it.
    Items(const RocksDbDatabase& database, const std::string& first, const std::string& last);

    // To the first item from `key` on, to the last one before it, or to the next.
    void Seek(std::string_view key);
    void SeekBefore(std::string_view key);
    void Next();
    // Whether there is an item.
    bool valid() const { return items_->Valid(); }
    std::string_view key() const;
    std::string_view value() const;
    // Why there may be more than were found. `repairs`: if that is damage, the next opening repairs
    // it.
    absl::Status status(bool repairs = false) const;

   private:
    void SkipExpired();

    const RocksDbDatabase& database_;
    const std::shared_ptr<rocksdb::DB> db_;
    const std::string first_, last_;
    const rocksdb::Slice begin_, end_;  // RocksDB reads them as long as the iterator is there
    std::unique_ptr<rocksdb::Iterator> items_;
  };

 private:
  rocksdb::Options Options() const;
  absl::Status OpenToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves tables that can't be read to the folder `lost`, and makes a manifest of the others, all
  // of which it reads. What the lost ones replaced or removed may be there again.
  absl::Status RepairAndOpen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When it is opened: while it is used everybody would have to wait.
  void RepairNextTime() const;
  void Use(rocksdb::DB* db) ABSL_LOCKS_EXCLUDED(db_mutex_);
  std::shared_ptr<rocksdb::DB> Database() const ABSL_LOCKS_EXCLUDED(db_mutex_);
  // Of the file system; as many as can be where it doesn't tell, or there is no directory yet.
  uint64_t FreeBytes() const;
  // What must be free. What adds doesn't get what was given up for what removes.
  uint64_t LeastFree(Room room) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives up the reserve for what removes.
  absl::Status HasRoom(Room room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepReserve() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where there is no room to add, and what was removed would do. RocksDB gives its room back when
  // it merges tables, which it does as it is written to: so here never.
  void MergeRemovedBehind() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PrepareToWrite(Room room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(Room room, Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string directory_;
  rocksdb::WriteOptions write_;
  const std::unique_ptr<const rocksdb::CompactionFilter> remove_expired_;
  const std::unique_ptr<rocksdb::Env> env_;
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

}  // namespace sis
