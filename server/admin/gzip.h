// The gzip coding of HTTP (RFC 9110, 8.4.1.3).
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sis {

// Whether an Accept-Encoding header asks for it.
bool AcceptsGzip(absl::string_view accept_encoding);

std::string Gzipped(absl::string_view bytes);

}  // namespace sis
