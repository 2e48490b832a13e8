// The command line: words, and Abseil flags that the subcommand or every subcommand reads.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/subcommand.h"

namespace sis {

struct CommandLine {
  // Null if there is none; then help must be set.
  const Subcommand* subcommand = nullptr;
  std::vector<std::string> arguments;
  bool help = false;
};

// Sets the flags that `words` (without the program's name) give: --name=value, --name value, and
// for booleans --name or
// --noname. Not absl::ParseCommandLine, which accepts the flags of every subcommand and ends the
// process by itself. InvalidArgument says what is wrong with the usage.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const absl::string_view> words,
                                             std::span<const Subcommand* const> subcommands,
                                             std::span<const absl::string_view> global_flags);

// What --help prints: of a subcommand, or of all of them if it is null.
std::string Help(const Subcommand* subcommand, std::span<const Subcommand* const> subcommands,
                 std::span<const absl::string_view> global_flags);

}  // namespace sis
