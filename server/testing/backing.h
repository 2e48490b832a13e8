// Where a store of a test keeps things: a real RocksDB.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/items/rocksdb_items.h"
#include "server/store/parse_store.h"

namespace sis {

// A directory that is removed with the object.
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

// Outlives the store.
class RocksDbBacking {
 public:
  std::string description() const { return absl::StrCat("rocksdb:", folder()); }
  std::string folder() const { return directory_.path() + "/db"; }
  // The database below, for damage. No store may be open.
  std::unique_ptr<ItemStore> OpenItems() { return *OpenRocksDbItems(folder(), false); }

 private:
  TemporaryDirectory directory_;
};

inline std::unique_ptr<SequenceStore> Open(const RocksDbBacking& backing) {
  auto store = OpenStore(backing.description());
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

}  // namespace sis
