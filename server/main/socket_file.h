// The file of a Unix socket.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sis {

// Who is to listen at a path must make its file there, where that of a server that was killed may
// still be. So the server listens at a path of its own beside the wanted one, and the file moves
// there once it is known that nobody answers at that path. Of two servers that start there at the
// same moment one may end up without a file.
class SocketFile {
 public:
  // For an address, unix:PATH. Unavailable if somebody answers there, or if what is there is no
  // socket.
  static absl::StatusOr<SocketFile> Prepare(absl::string_view address);

  SocketFile(SocketFile&& other) noexcept { *this = std::move(other); }
  SocketFile& operator=(SocketFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(temporary_, other.temporary_);
    std::swap(device_, other.device_);
    std::swap(inode_, other.inode_);
    return *this;
  }
  // Removes the file, unless somebody has put another one there.
  ~SocketFile();

  // Where to listen first.
  const std::string& temporary_path() const { return temporary_; }
  // Moves the file from there to where it was wanted.
  absl::Status Publish();

 private:
  SocketFile() = default;

  std::string path_;
  std::string temporary_;
  // What was published, once it was.
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace sis
