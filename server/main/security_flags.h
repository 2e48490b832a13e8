// The flags that say who may call, and what a connection may cost.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/security/connection_limits.h"
#include "server/security/security_options.h"

namespace sis {

// What makes no sense about the value that the flag has now, as Configuration asks it; empty too if
// it is none of these flags.
std::string SecurityFlagProblem(absl::string_view flag);

// Of flags that make sense.
SecurityOptions SecurityFromFlags();
ConnectionLimits ConnectionLimitsFromFlags();

}  // namespace sis
