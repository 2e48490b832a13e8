// A real memcached for tests, on a UNIX socket of its own.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

extern char** environ;

namespace sis {

// A short path: socket names have at most 107 bytes, which a test's own directory may exceed.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/sis_store_XXXXXX";
    if (mkdtemp(name) == nullptr) std::abort();
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class MemcachedServer {
 public:
  explicit MemcachedServer(std::string socket) : socket_(std::move(socket)) { Start(); }
  ~MemcachedServer() { Kill(); }
  MemcachedServer(const MemcachedServer&) = delete;
  MemcachedServer& operator=(const MemcachedServer&) = delete;

  const std::string& socket() const { return socket_; }

  // Answers when it returns, and holds nothing.
  void Start() {
    const std::string program = "/usr/bin/memcached";
    // As root it wants to be told a user, and in a sandbox there is no other.
    const char* arguments[] = {
        program.c_str(), "-s", socket_.c_str(), "-m", "64", "-t", "1", "-u", "root", nullptr};
    if (posix_spawn(&pid_, program.c_str(), nullptr, nullptr, const_cast<char**>(arguments),
                    environ) != 0) {
      std::abort();
    }
    while (!Answers()) {
      if (waitpid(pid_, nullptr, WNOHANG) != 0) std::abort();  // it said why
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void Kill() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
    unlink(socket_.c_str());
  }

 private:
  bool Answers() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket_.c_str(), sizeof(address.sun_path) - 1);
    const bool connected =
        connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return connected;
  }

  const std::string socket_;
  pid_t pid_ = 0;
};

}  // namespace sis
