// The servers that one name stands for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sis {

// What is to be looked up for an address, as gRPC takes it.
struct LookedUpName {
  std::string dns_server = {};  // host:port; empty for the system's own way
  std::string host = {};
  std::string port = {};
};

// Nothing for what is no name with a port: a socket, numbers. Nor for names of this machine.
std::optional<LookedUpName> NameToLookUp(absl::string_view address);

// Of each server that the name stands for, the address in numbers, sorted. Of a name that has
// addresses of both kinds those of one, as a server mostly has one of each. Empty if there is
// nothing to look up, or nothing is found.
std::vector<std::string> ServersBehind(absl::string_view address);

}  // namespace sis
