#include "server/testing/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

extern char** environ;

namespace sis {
namespace {

[[noreturn]] void Abort(const std::string& what) {
  std::cerr << what << '\n';
  std::abort();
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) Abort("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  if (posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) {
    Abort("cannot start " + arguments[0]);
  }
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  output_ = fdopen(pipe_ends[0], "r");
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
  std::fclose(output_);
}

std::string ChildProcess::ReadLine() {
  std::string line;
  for (int c; (c = std::fgetc(output_)) != EOF && c != '\n';) line += static_cast<char>(c);
  return line;
}

int ChildProcess::Wait() {
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) Abort("waitpid");
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

double ChildProcess::cpu_seconds() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  // Fields 14 and 15; the second, the name, may contain anything, in brackets.
  std::istringstream fields(all.substr(all.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace sis
