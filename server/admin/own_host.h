// Whose server a browser believes to talk to.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sis {

// Whether a request that names this Host (RFC 9110, 7.2; with or without a port) may be answered. A
// page from elsewhere whose name is made to lead here (DNS rebinding) names itself. So names are
// trusted that nobody can register: addresses, localhost and all under it, names without a dot, and
// `names`, in any case; a name that begins with a dot stands for all that end so. Clients older
// than HTTP/1.1 need not name any.
bool IsOwnHost(absl::string_view host, const std::vector<std::string>& names);

}  // namespace sis
