#include "server/auth/regular_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<std::string> ReadRegularFile(const std::string& path) {
  const auto refuse = [&path](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(path, " can't be read: ", why));
  };
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  if (error) return refuse(error.message());
  if (!regular) return refuse("it is not a regular file");
  std::ifstream file(path, std::ios::binary);
  if (!file) return refuse(std::strerror(errno));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return refuse(std::strerror(errno));
  return text;
}

}  // namespace sis
