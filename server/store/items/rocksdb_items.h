// Items in a RocksDB of this machine. An item survives the process (kill -9) as soon as it is
// written, and with `sync` the machine (a power cut) as well. Where the disk is nearly full, adding
// is ResourceExhausted; a little later so is all writing. What is there can be opened and read on a
// disk without any room. Where it couldn't be opened, listed or written for a damaged file, opening
// it (again) moves the tables that can't be read to its folder `lost`, and the rest is served.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/items/item_store.h"

namespace sis {

// Creates the directory if need be. Unavailable if it can't be opened: another process has it, say.
absl::StatusOr<std::unique_ptr<ItemStore>> OpenRocksDbItems(const std::string& directory,
                                                            bool sync);

// How many tables lie in `lost`.
int64_t DamagedRocksDbFiles(const std::string& directory);

}  // namespace sis
