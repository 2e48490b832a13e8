// A program that a test starts.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace sis {

// The destructor kills the program if it still runs.
class ChildProcess {
 public:
  // The first argument is the program. Aborts the test if it can't be started.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Returns the next line of its standard output, without the end of line; empty at the end.
  std::string ReadLine();

  // Waits for its end. Returns the exit status, or the negative number of the signal that ended it.
  int Wait();

  // Returns its user and system time so far.
  double cpu_seconds() const;

 private:
  pid_t pid_;
  std::FILE* output_;
};

}  // namespace sis
