// A RocksDB in a temporary directory, for tests of stores.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/open_store.h"
#include "server/store/rocksdb/database.h"

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
  // Opens the database itself, to damage it. No store may be open.
  std::unique_ptr<RocksDbDatabase> OpenDatabase() {
    auto database = std::make_unique<RocksDbDatabase>(folder(), /*sync=*/false);
    EXPECT_TRUE(database->Open().ok());
    return database;
  }
  // Returns the number of stored fields of hashes with this prefix.
  int CountItems(const std::string& prefix) {
    int items = 0;
    EXPECT_TRUE(OpenDatabase()
                    ->ForEach(prefix, [&](std::string_view, absl::string_view) { ++items; })
                    .ok());
    return items;
  }
  // Replaces a stored field by any bytes.
  void PutRaw(std::string_view hash, std::string_view field, std::string_view payload) {
    const std::string key = std::string(hash).append("/").append(field);
    EXPECT_TRUE(OpenDatabase()
                    ->Write(RocksDbDatabase::Room::kToAdd,
                            [&](RocksDbDatabase::Batch& batch) {
                              batch.Put(key, absl::InfiniteFuture(), payload);
                              return absl::OkStatus();
                            })
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
