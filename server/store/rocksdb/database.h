// A RocksDB on this machine that tolerates a full disk and damaged files.
//
// Writes survive the process (kill -9), and with `sync` the machine (a power cut). On a nearly full
// disk adding fails with ResourceExhausted; with even less space all writes do. A database on a
// full disk can still be opened and read. If a damaged file prevents opening, listing or writing,
// the next opening moves unreadable tables to the folder `lost`, and serves the others.
#pragma once

#include <rocksdb/compaction_filter.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {

// Thread-safe. Every item has its time of expiry; expired items are invisible. RocksDB keeps
// checksums.
class RocksDbDatabase {
 public:
  RocksDbDatabase(const std::string& directory, bool sync);
  ~RocksDbDatabase() { merging_ends_ = true; }

  // Must be called before all other functions. Opens read-only if there is no space to write.
  absl::Status Open() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns OK, or the reason why nothing can be added. Must be called periodically, because only
  // this call makes a database writable again that was full.
  absl::Status CanAdd() ABSL_LOCKS_EXCLUDED(mutex_);

  // The size and the range of keys of removed items.
  struct Removed {
    uint64_t bytes = 0;
    std::string first = {}, last = {};
    void Add(const Removed& other);
  };
  class Batch {
   public:
    void Put(std::string_view key, absl::Time expires, std::string_view payload);
    // `bytes` is the size of the current payload, as far as it is known.
    void Remove(std::string_view key, size_t bytes);

   private:
    friend class RocksDbDatabase;
    rocksdb::WriteBatch writes_;
    Removed removed_;
  };
  // Purpose of a write. Adding must leave space on a full disk for writes that remove.
  enum class Room { kToAdd, kToRemove };
  // Calls `fill`, and writes its batch, all or none; nothing if it returns an error. Excludes other
  // writers from the call of `fill` on.
  absl::Status Write(Room room, absl::FunctionRef<absl::Status(Batch&)> fill)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes all keys in [first, last).
  absl::Status RemoveRange(const std::string& first, const std::string& last)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Item {
    absl::Time expires;
    std::string payload;
  };
  // Returns NotFound if there is none.
  absl::StatusOr<Item> Get(std::string_view key) const;

  using Visitor = absl::FunctionRef<void(std::string_view key, absl::string_view payload)>;
  // Calls `visit` with the items whose keys begin with `prefix`, without it, at least once. Returns
  // the keys, without the prefix, of damaged items.
  absl::StatusOr<std::vector<std::string>> ForEach(const std::string& prefix, Visitor visit) const;

  // Requests a repair at the next opening. A repair now would block all calls.
  void RepairNextTime() const;

 private:
  rocksdb::Options Options() const;
  absl::Status OpenToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves unreadable tables to the folder `lost`, reads all others, and makes a manifest of them.
  // Items that the lost tables replaced or removed may reappear.
  absl::Status RepairAndOpen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Use(rocksdb::DB* db) ABSL_LOCKS_EXCLUDED(db_mutex_);
  std::shared_ptr<rocksdb::DB> Database() const ABSL_LOCKS_EXCLUDED(db_mutex_);
  // Returns the free bytes of the file system, or the maximum if they are unknown.
  uint64_t FreeBytes() const;
  // Returns the bytes that must be free for a write. Adding must not use the released reserve.
  uint64_t LeastFree(Room room) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns OK if there is space for a write. Deletes the reserve file if a removal needs it.
  absl::Status HasRoom(Room room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepReserve() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Merges tables if there is no space to add, and removed items occupy enough. RocksDB frees space
  // only when it merges tables, which it does only while it is written to.
  void MergeRemovedBehind() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status PrepareToWrite(Room room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(Room room, Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string directory_;
  rocksdb::WriteOptions write_;
  const std::unique_ptr<const rocksdb::CompactionFilter> remove_expired_;
  const std::unique_ptr<rocksdb::Env> env_;
  const std::string reserve_ = directory_ + "/reserve";
  // A file that exists if the next opening must repair the database.
  const std::string repair_ = directory_ + "/repair";
  Mutex mutex_;  // held to write
  // True if the database was opened read-only, on a full disk.
  bool read_only_ ABSL_GUARDED_BY(mutex_) = false;
  bool reserve_given_up_ ABSL_GUARDED_BY(mutex_) = false;
  // Items removed since tables were merged for space.
  Removed removed_ ABSL_GUARDED_BY(mutex_);
  bool merging_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> merging_ends_ = false;
  mutable Mutex db_mutex_;  // a leaf
  // Readers keep the object that they began with, even if it is replaced.
  std::shared_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(db_mutex_);
  WorkerPool behind_{1};  // destroyed first
};

}  // namespace sis
