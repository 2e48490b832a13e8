// What all servers that are asked say together.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/client.h"

namespace sis {

// `shown` is how a subcommand ended that shows what all servers hold: well, or
// with NotFound, it is Unavailable if one of them gives no answer, with a
// notice for each: what the others say is without its share.
absl::Status FromEveryServer(Client& client, const absl::Status& shown);

// Not by GetRun: a client that has looked a run up opens it again where it is
// lost. NotFound if it is unknown.
absl::StatusOr<v1::Run> FindRun(Client& client, const std::string& run_id);

}  // namespace sis
