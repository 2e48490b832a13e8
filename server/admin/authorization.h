// Who calls, as HTTP says it and as gRPC takes it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sis {

// The authorization of a call, of what the header of that name says: of a name and a password,
// which a browser sends, the password is the token. Unauthenticated if it can't be metadata.
absl::StatusOr<std::string> AuthorizationOfCall(absl::string_view header);

}  // namespace sis
