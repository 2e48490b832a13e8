#include "server/store/open_store.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/redis/redis_address.h"
#include "server/store/redis/redis_store.h"
#include "server/store/rocksdb/rocksdb_store.h"

namespace sis {
namespace {

bool IsRedis(std::string_view description) {
  return description.starts_with("redis://") || description.starts_with("rediss://");
}

struct RocksDbDirectory {
  std::string path;
  bool sync;
};

// Returns nullopt for "memory".
absl::StatusOr<std::optional<RocksDbDirectory>> Parse(std::string_view description) {
  constexpr std::string_view kRocksDb = "rocksdb:", kSync = "?sync=1";
  if (description == "memory") return std::nullopt;
  if (!description.starts_with(kRocksDb)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store '", std::string(description), "' is neither memory, rocksdb:DIR nor redis://HOST"));
  }
  std::string_view directory = description.substr(kRocksDb.size());
  const bool sync = directory.ends_with(kSync);
  if (sync) directory.remove_suffix(kSync.size());
  if (directory.empty() || directory.find('?') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("store '", std::string(description), "' is not rocksdb:DIR[?sync=1]"));
  }
  return RocksDbDirectory{std::string(directory), sync};
}

}  // namespace

int64_t DamagedFiles(std::string_view description) {
  const absl::StatusOr<std::optional<RocksDbDirectory>> rocksdb = Parse(description);
  return rocksdb.ok() && rocksdb->has_value() ? DamagedRocksDbFiles((*rocksdb)->path) : 0;
}

absl::Status CheckStore(std::string_view description) {
  return IsRedis(description) ? ParseRedisAddress(description).status()
                              : Parse(description).status();
}

absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view description,
                                                 std::string_view server_name) {
  if (IsRedis(description)) return OpenRedis(description, server_name);
  const absl::StatusOr<std::optional<RocksDbDirectory>> rocksdb = Parse(description);
  if (!rocksdb.ok()) return rocksdb.status();
  if (!rocksdb->has_value()) return nullptr;
  return OpenRocksDb((*rocksdb)->path, (*rocksdb)->sync);
}

}  // namespace sis
