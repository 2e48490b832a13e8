// A RocksDB in a temporary directory, for tests of stores.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/open_store.h"
#include "server/store/rocksdb/database.h"
#include "server/store/rocksdb/item.h"

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
  // Writes any value.
  void PutRaw(const std::string& key, const std::string& value) {
    EXPECT_TRUE(OpenDatabase()
                    ->Write(RocksDbDatabase::Room::kToAdd,
                            [&](RocksDbDatabase::Batch& batch) {
                              batch.Put(key, value);
                              return absl::OkStatus();
                            })
                    .ok());
  }
  // Flips one bit of a stored value.
  void Damage(const std::string& key, size_t byte) {
    std::string value = *OpenDatabase()->Get(key);
    value[byte % value.size()] ^= 0x10;
    PutRaw(key, value);
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
