// Where the values of the program's flags are from, if not from the command line.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sis {

// A flag has the value of the command line; else of the environment, as SIS_SERVER_NAME; else of
// the file that --config or SIS_SERVER_CONFIG names; else its default. The flags are those that
// files of server/ define.
//
// A line of the file is `name = value`, the value as on the command line; from '#' on, at the start
// of a line or after a space, it is a comment. A value that no line can hold, because of that, of
// spaces around it or of a new line in it, is refused wherever it stands.
class Configuration {
 public:
  // What makes no sense about the value that a flag has now, whatever others have: what is to be
  // said behind "--flag=value". Empty if nothing.
  using FlagProblem = std::function<std::string(absl::string_view flag)>;

  // Sets all flags. What can't be parsed on the command line ends the process, as
  // absl::ParseCommandLine does. InvalidArgument names the flag, and where the value is from;
  // values that are overridden must make sense too, and a name that is no flag is an error wherever
  // it stands. Of a flag that stands on the command line twice only the last value is looked at.
  static absl::StatusOr<Configuration> Load(int argc, char** argv, FlagProblem problem_of);

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

  explicit Configuration(FlagProblem problem_of) : problem_of_(std::move(problem_of)) {}
  absl::Status TakeFile(const std::string& path);
  absl::Status TakeEnvironment();
  absl::Status Take(const Setting& setting);
  // Of the value that the flag has now.
  absl::Status Check(const Setting& setting) const;
  static absl::Status Refuse(const Setting& setting, absl::string_view why);

  FlagProblem problem_of_;
  std::map<std::string, std::string> sources_;  // by flag; no entry: the default
};

}  // namespace sis
