// A store in a RocksDB on this machine's disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace sis {

// Opens the store, and creates the directory if necessary. Acked writes survive the process, and
// with `sync` a power cut. Returns Unavailable if the store can't be opened, for example because
// another process has it open; DataLoss if it is damaged: opening it again quarantines unreadable
// files.
absl::StatusOr<std::unique_ptr<Store>> OpenRocksDb(const std::string& directory, bool sync);

// Returns the number of quarantined tables.
int64_t DamagedRocksDbFiles(const std::string& directory);

}  // namespace sis
