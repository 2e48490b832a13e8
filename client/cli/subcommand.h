// What sisctl can do: one file per subcommand, listed in sisctl.cc.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/api/client.h"

namespace sis {

struct Subcommand {
  // One or two words.
  absl::string_view name;
  // Names of its arguments, one word each; all of them are required.
  std::vector<absl::string_view> arguments;
  // One line.
  absl::string_view summary;
  // For --help; may be empty.
  absl::string_view details;
  // Names of the flags it reads, besides the global ones.
  std::vector<absl::string_view> flags;
  // What is wrong with the usage, before any server is asked. May be null.
  absl::Status (*check)(std::span<const std::string> arguments);
  // Prints to standard output.
  absl::Status (*run)(Client& client, std::span<const std::string> arguments);
};

extern const Subcommand kRunsList;
extern const Subcommand kRunsGet;
extern const Subcommand kRunsCreate;
extern const Subcommand kStep;
extern const Subcommand kReplay;

}  // namespace sis
