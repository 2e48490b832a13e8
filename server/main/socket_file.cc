#include "server/main/socket_file.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sis {
namespace {

// What connecting there says: 0, or an errno.
int Connect(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (client < 0) return errno;
  const int error =
      connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0
                                                                                         : errno;
  close(client);
  return error;
}

absl::Status CheckFree(const std::string& path) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::UnavailableError(std::strerror(errno));
  }
  if (!S_ISSOCK(file.st_mode)) return absl::UnavailableError("what is there is no socket");
  switch (const int error = Connect(path); error) {
    case ECONNREFUSED:  // left behind by a server that was killed
    case ENOENT:
      return absl::OkStatus();
    case 0:
    case EAGAIN:  // more connect than it accepts
      return absl::UnavailableError("address in use, somebody answers there");
    default:
      return absl::UnavailableError(std::strerror(error));
  }
}

// Of a few characters, so that it is hardly longer than any other: the path of a socket is at most
// 107 bytes.
absl::StatusOr<std::string> RandomName() {
  std::array<char, 3> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return absl::InternalError(absl::StrCat("getrandom: ", std::strerror(errno)));
  }
  return absl::StrCat(".", absl::BytesToHexString({random.data(), random.size()}));
}

}  // namespace

absl::StatusOr<SocketFile> SocketFile::Prepare(absl::string_view address) {
  absl::string_view path = absl::StripPrefix(address, "unix:");
  absl::ConsumePrefix(&path, "//");
  SocketFile file;
  file.path_ = std::string(path);
  if (absl::Status status = CheckFree(file.path_); !status.ok()) return status;
  const absl::StatusOr<std::string> name = RandomName();
  if (!name.ok()) return name.status();
  // The folder is all up to the last slash, if there is one.
  file.temporary_ = absl::StrCat(path.substr(0, path.rfind('/') + 1), *name);
  return file;
}

absl::Status SocketFile::Publish() {
  struct stat file;
  if (lstat(temporary_.c_str(), &file) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  device_ = file.st_dev;
  inode_ = file.st_ino;
  return absl::OkStatus();
}

SocketFile::~SocketFile() {
  struct stat file;
  if (inode_ == 0 || lstat(path_.c_str(), &file) != 0) return;
  if (file.st_dev == device_ && file.st_ino == inode_) unlink(path_.c_str());
}

}  // namespace sis
