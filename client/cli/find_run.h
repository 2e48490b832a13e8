// Looks a run up without changing anything.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/api/client.h"

namespace sis {

// Not by GetRun: a client that has looked a run up opens it again where it is lost. NotFound if it
// is unknown.
absl::StatusOr<v1::Run> FindRun(Client& client, const std::string& run_id);

}  // namespace sis
