// A store in Redis 7 or later, or in Valkey, alone or as a cluster.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace sis {

// Connects to `address`, as server/store/redis/redis_address.h defines it. Prints a warning if the
// server may lose what it acknowledges. `server_name` keeps the steps of this server apart. Returns
// InvalidArgument for anything else, Unavailable if no node answers.
absl::StatusOr<std::unique_ptr<Store>> OpenRedis(std::string_view address,
                                                 std::string_view server_name);

}  // namespace sis
