// A RocksDB in a temporary directory, for tests of stores.
#pragma once

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/open_store.h"

namespace sis {

// A temporary directory. The destructor removes it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/sis-XXXXXX";
};

// Must outlive the store.
class RocksDbBacking {
 public:
  std::string description() const { return absl::StrCat("rocksdb:", folder()); }
  std::string folder() const { return directory_.path() + "/db"; }
  // Opens the database itself, to look at it or to damage it. No store may be open.
  std::unique_ptr<rocksdb::DB> OpenDatabase() const {
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* database = nullptr;
    EXPECT_TRUE(rocksdb::DB::Open(options, folder(), &database).ok());
    return std::unique_ptr<rocksdb::DB>(database);
  }
  // Returns the number of stored fields of hashes with this prefix.
  int CountItems(const std::string& prefix) const {
    const std::unique_ptr<rocksdb::DB> database = OpenDatabase();
    const std::unique_ptr<rocksdb::Iterator> it(database->NewIterator(rocksdb::ReadOptions()));
    int items = 0;
    for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) ++items;
    return items;
  }
  // Replaces a stored field, which never expires, by any bytes.
  void PutRaw(const std::string& hash, const std::string& field, const std::string& payload) const {
    const std::string never(8, '\0');
    EXPECT_TRUE(OpenDatabase()
                    ->Put(rocksdb::WriteOptions(), absl::StrCat(hash, "/", field), never + payload)
                    .ok());
  }

 private:
  TemporaryDirectory directory_;
};

inline std::unique_ptr<Store> Open(const RocksDbBacking& backing) {
  auto store = OpenStore(backing.description());
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

}  // namespace sis
