// The flags that say how to serve.
#pragma once

#include <string>

#include "absl/flags/declare.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/main/server.h"

ABSL_DECLARE_FLAG(absl::Duration, shutdown_grace);

namespace sis {

// What makes no sense about the value that a flag has now, as Configuration asks it.
std::string FlagProblem(absl::string_view flag);

// Of flags that make sense.
ServerOptions OptionsFromFlags();

}  // namespace sis
