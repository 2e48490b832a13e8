// The flags that say who may call, and what a connection may cost.
#pragma once

#include "absl/status/status.h"
#include "server/main/configuration.h"
#include "server/security/connection_limits.h"
#include "server/security/security_options.h"

namespace sis {

// Says of the first of them whose value makes no sense by itself what is wrong with it.
absl::Status CheckSecurityFlags(const Configuration& configuration);

// Of flags that make sense.
SecurityOptions SecurityFromFlags();
ConnectionLimits ConnectionLimitsFromFlags();

}  // namespace sis
