// The flags that say who may call, and what a connection may cost.
#pragma once

#include <string>

#include "server/security/connection_limits.h"
#include "server/security/security_options.h"

namespace sis {

// The first of them whose value makes no sense by itself, or empty.
std::string BadSecurityFlag();

// Of flags that make sense.
SecurityOptions SecurityFromFlags();
ConnectionLimits ConnectionLimitsFromFlags();

}  // namespace sis
