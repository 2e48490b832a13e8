#include "server/auth/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes) {
  const auto refuse = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, " can't be read: ", why));
  };
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) return refuse(std::strerror(errno));
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat status = {};
  if (fstat(file, &status) != 0) return refuse(std::strerror(errno));
  if (S_ISDIR(status.st_mode)) return refuse(std::strerror(EISDIR));
  if (!S_ISREG(status.st_mode)) return refuse("it is not a regular file");

  constexpr size_t kPiece = size_t{64} << 10;
  std::string text;
  // The size from fstat may be 0, as in /proc, or change in the meantime.
  for (size_t size = 0;;) {
    text.resize(size + std::min(kPiece, max_bytes + 1 - size));
    const ssize_t count = read(file, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return refuse(std::strerror(errno));
    size += static_cast<size_t>(count);
    if (size > max_bytes) return refuse(absl::StrCat("it has more than ", max_bytes, " bytes"));
    if (count > 0) continue;
    text.resize(size);
    return text;
  }
}

}  // namespace sis
