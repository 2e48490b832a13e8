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
// anything else, Unavailable if it can't be opened, DataLoss if opening it again sets aside what is
// damaged.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(std::string_view description,
                                                 std::string_view server_name = "");

// Files of such a store that turned out to be damaged, and were set aside with what was in them.
int64_t DamagedFiles(std::string_view description);

// Returns the InvalidArgument error of OpenStore, without opening anything.
absl::Status CheckStore(std::string_view description);

}  // namespace sis
