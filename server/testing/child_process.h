// A program that runs beside the test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace sis {

// Killed, if it still runs, when the object goes.
class ChildProcess {
 public:
  // The first argument is the program. Aborts the test if it can't be started.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line of its standard output, without the end of line; empty at the end.
  std::string ReadLine();

  // SIGSTOP has stopped all of its threads when this returns.
  void Signal(int signal) const;
  // Waits for its end; the exit status, or minus the signal that ended it.
  int Wait();

  int64_t resident_bytes() const;
  // User and system time so far.
  double cpu_seconds() const;

 private:
  pid_t pid_;
  std::FILE* output_;
};

}  // namespace sis
