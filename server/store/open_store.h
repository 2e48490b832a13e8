// Opens the store that --store names.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace sis {

// Opens "memory" (returns null: everything is in the server's memory), "rocksdb:DIR",
// "rocksdb:DIR?sync=1" (every ack survives a power cut), or an address of
// server/store/redis/redis_address.h. `server_name` separates the steps of this server from others'
// in a shared store. Returns InvalidArgument for anything else, Unavailable if the store can't be
// opened, DataLoss if it is damaged: opening it again quarantines the damaged files.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view description,
                                                 std::string_view server_name = "");

// Returns the number of damaged files that the store has quarantined, now or at an earlier start.
int64_t DamagedFiles(std::string_view description);

// Returns OpenStore's InvalidArgument error, if any, without opening a store.
absl::Status CheckStore(std::string_view description);

}  // namespace sis
