// Where the values of the program's flags are from, if not from the command line.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sis {

// A flag has the value of the command line; else of the environment, as SIS_SERVER_NAME; else of
// the file that --config or SIS_SERVER_CONFIG names; else its default. The flags are those that
// files of server/ define.
//
// A line of the file is `name = value`, the value as on the command line; from '#' on, at the start
// of a line or after a space, it is a comment.
class Configuration {
 public:
  // Sets all flags. What is wrong on the command line ends the process, as absl::ParseCommandLine
  // does. InvalidArgument names the flag, and where the value is from; values that are overridden
  // must be valid too, and a name that is no flag is an error wherever it stands.
  static absl::StatusOr<Configuration> Load(int argc, char** argv);

  // "command line", "environment", "FILE:LINE" or "default".
  std::string SourceOf(absl::string_view flag) const;

  // All values with their sources: lines that are such a file.
  std::string Describe() const;

 private:
  // For messages.
  struct Setting {
    std::string name;
    std::string value;
    std::string source;
  };

  Configuration() = default;
  absl::Status TakeFile(const std::string& path);
  absl::Status TakeEnvironment();
  absl::Status Take(const Setting& setting);

  std::map<std::string, std::string> sources_;  // by flag; no entry: the default
};

}  // namespace sis
