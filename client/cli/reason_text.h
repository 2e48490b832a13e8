// Why positions are missing, for people.
#pragma once

#include <string>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// "never arrived" of NEVER_ARRIVED.
std::string ReasonText(v1::MissingReason reason);

}  // namespace sis
