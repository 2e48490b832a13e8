// A store on this machine's disk, in a RocksDB of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace sis {

// Creates the directory if need be. What is acked survives the process, and with `sync` a power
// cut. Unavailable if it can't be opened: another process has it, say. DataLoss if it is damaged:
// opening it again quarantines the files that can't be read.
absl::StatusOr<std::unique_ptr<Store>> OpenRocksDb(const std::string& directory, bool sync);

// Returns the number of quarantined tables.
int64_t DamagedRocksDbFiles(const std::string& directory);

}  // namespace sis
