// sis_server as a process, for tests.
#pragma once

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "server/testing/child_process.h"

namespace sis {

class ServerProcess final : public ChildProcess {
 public:
  // Returns when the server is ready. Aborts the test if it exits before.
  explicit ServerProcess(const std::vector<std::string>& flags) : ChildProcess(CommandLine(flags)) {
    constexpr char kAddress[] = "grpc: ";
    for (std::string line; (line = ReadLine()) != "ready";) {
      if (line.empty()) {
        std::cerr << "sis_server ended before it was ready\n";
        std::abort();
      }
      if (line.starts_with(kAddress)) address_ = line.substr(sizeof(kAddress) - 1);
    }
  }

  // Returns the address with the port that was picked.
  const std::string& address() const { return address_; }

 private:
  static std::vector<std::string> CommandLine(const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"server/main/sis_server", "--admin="};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  }

  std::string address_;
};

}  // namespace sis
