// Which store --store asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace sis {

// "memory" (null: nothing outlives the server's memory), "rocksdb:DIR", or "rocksdb:DIR?sync=1"
// (every ack survives a power cut), or an address of server/store/redis/redis_address.h.
// `server_name` keeps the steps of this server apart in a store that is shared. InvalidArgument for
// anything else, Unavailable if it can't be opened, DataLoss if it is
// damaged: opening it again quarantines the damaged files.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view description,
                                                 std::string_view server_name = "");

// Returns the number of damaged files that the store has quarantined, now or at an earlier start.
int64_t DamagedFiles(std::string_view description);

// Returns the InvalidArgument error of OpenStore, without opening anything.
absl::Status CheckStore(std::string_view description);

}  // namespace sis
