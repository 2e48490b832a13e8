#include "server/security/read_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // Of a folder the first look fails; of an empty file there is nothing to take.
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (!file || !text) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return std::move(text).str();
}

}  // namespace sis
