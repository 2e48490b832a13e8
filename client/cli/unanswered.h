// Replicas that gave no answer: what the others say is without their share.
#pragma once

#include "absl/status/status.h"
#include "client/api/client.h"

namespace sis {

// `shown` is how a subcommand ended that shows what all servers hold: well, or with NotFound, it is
// Unavailable if one of them gives no answer, with a notice for each.
absl::Status FromEveryServer(Client& client, const absl::Status& shown);

}  // namespace sis
