#include "server/main/configuration.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/files/regular_file.h"

namespace sis {
namespace {

constexpr absl::string_view kPrefix = "SIS_SERVER_";
constexpr char kCommandLine[] = "command line";

// These say how to start, not how to serve: no file may hold them.
bool IsAboutStart(absl::string_view flag) {
  return flag == "config" || flag == "check" || flag == "parent";
}

// By name, in order. Null if there is no such flag of the server's own.
std::map<std::string, absl::CommandLineFlag*> OwnFlags() {
  std::map<std::string, absl::CommandLineFlag*> own;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::StrContains(flag->Filename(), "server/main/")) own.emplace(name, flag);
  }
  return own;
}

absl::CommandLineFlag* OwnFlag(absl::string_view name) {
  static const auto& flags = *new std::map<std::string, absl::CommandLineFlag*>(OwnFlags());
  const auto found = flags.find(std::string(name));
  return found == flags.end() ? nullptr : found->second;
}

std::string VariableOf(absl::string_view flag) {
  return absl::StrCat(kPrefix, absl::AsciiStrToUpper(flag));
}

// The names of the flags that the command line gives.
std::set<std::string> NamesOnCommandLine(int argc, char** argv) {
  std::set<std::string> names;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--") break;
    if (!absl::ConsumePrefix(&argument, "--") && !absl::ConsumePrefix(&argument, "-")) continue;
    absl::string_view name = argument.substr(0, argument.find('='));
    if (absl::FindCommandLineFlag(name) == nullptr) absl::ConsumePrefix(&name, "no");
    if (absl::FindCommandLineFlag(name) != nullptr) names.emplace(name);
  }
  return names;
}

// Kubernetes gives such variables to every container beside a Service that is called sis-server.
bool IsServiceLink(absl::string_view variable) {
  return absl::ConsumePrefix(&variable, kPrefix) &&
         (variable == "SERVICE_HOST" || absl::StartsWith(variable, "SERVICE_PORT") ||
          variable == "PORT" || absl::StartsWith(variable, "PORT_"));
}

// Without a comment, and without spaces around.
absl::string_view Content(absl::string_view line) {
  for (size_t hash = line.find('#'); hash != line.npos; hash = line.find('#', hash + 1)) {
    if (hash == 0 || absl::ascii_isspace(static_cast<unsigned char>(line[hash - 1]))) {
      line = line.substr(0, hash);
      break;
    }
  }
  return absl::StripAsciiWhitespace(line);
}

bool FitsInALine(absl::string_view value) {
  return value.find('\n') == value.npos && Content(value) == value;
}

}  // namespace

absl::StatusOr<Configuration> Configuration::Load(int argc, char** argv, FlagProblem problem_of) {
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", rest[1], "' is no flag"));
  }
  std::vector<std::pair<absl::CommandLineFlag*, std::string>> given;
  const std::set<std::string> names = NamesOnCommandLine(argc, argv);
  for (const std::string& name : names) {
    if (absl::CommandLineFlag* flag = OwnFlag(name)) {
      given.emplace_back(flag, flag->CurrentValue());
    } else {
      // Abseil's own, such as --flagfile, from which nobody could tell where a value is from.
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is not for the server; a file of flags is given by --config"));
    }
  }
  Configuration configuration(std::move(problem_of));
  std::string file = absl::FindCommandLineFlag("config")->CurrentValue();
  const char* const file_variable = getenv(VariableOf("config").c_str());
  if (!names.contains("config") && file_variable != nullptr) file = file_variable;
  if (!file.empty()) {
    if (absl::Status status = configuration.TakeFile(file); !status.ok()) return status;
  }
  if (absl::Status status = configuration.TakeEnvironment(); !status.ok()) return status;
  for (const auto& [flag, value] : given) {
    absl::Status status = configuration.Take({std::string(flag->Name()), value, kCommandLine});
    if (!status.ok()) return status;
  }
  for (const auto& [name, flag] : OwnFlags()) {
    if (configuration.sources_.contains(name)) continue;
    // What a machine is like may make a default that makes no sense.
    absl::Status status =
        configuration.Check({name, flag->CurrentValue(), configuration.SourceOf(name)});
    if (!status.ok()) return status;
  }
  return configuration;
}

absl::Status Configuration::Take(const Setting& setting) {
  std::string error;
  if (!OwnFlag(setting.name)->ParseFrom(setting.value, &error)) {
    return Refuse(setting, absl::StrCat(": ", error));
  }
  sources_[setting.name] = setting.source;
  return Check(setting);
}

absl::Status Configuration::Check(const Setting& setting) const {
  if (!IsAboutStart(setting.name) && !FitsInALine(OwnFlag(setting.name)->CurrentValue())) {
    return Refuse(
        setting,
        ": no line of a file can hold a value with spaces around it, with '#' at its start "
        "or after a space, or with a new line in it");
  }
  const std::string problem = problem_of_(setting.name);
  return problem.empty() ? absl::OkStatus() : Refuse(setting, problem);
}

absl::Status Configuration::Refuse(const Setting& setting, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", setting.name, "=", setting.value, " (from ", setting.source, ")", why));
}

absl::Status Configuration::TakeFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--config=", text.status().message()));
  }
  std::map<std::string, int> lines;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::string where = absl::StrCat(path, ":", ++number);
    const absl::string_view content = Content(line);
    if (content.empty()) continue;
    const size_t equals = content.find('=');
    if (equals == content.npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": '", content, "' is not name = value"));
    }
    const std::string name(absl::StripAsciiWhitespace(content.substr(0, equals)));
    if (OwnFlag(name) == nullptr || IsAboutStart(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": '", name, "' is no flag that a file can give"));
    }
    if (const auto [first, fresh] = lines.emplace(name, number); !fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": '", name, "' stands in line ", first->second, " already"));
    }
    const std::string value(absl::StripAsciiWhitespace(content.substr(equals + 1)));
    if (absl::Status status = Take({name, value, where}); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Configuration::TakeEnvironment() {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    absl::string_view value = *variable;
    const absl::string_view name = value.substr(0, value.find('='));
    if (!absl::StartsWith(name, kPrefix) || IsServiceLink(name)) continue;
    value.remove_prefix(std::min(value.size(), name.size() + 1));
    const std::string flag = absl::AsciiStrToLower(absl::StripPrefix(name, kPrefix));
    if (flag == "config") continue;
    if (OwnFlag(flag) == nullptr || IsAboutStart(flag) || name != VariableOf(flag)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the environment has ", name, ", but there is no such flag"));
    }
    const Setting setting = {flag, std::string(value), "environment"};
    if (absl::Status status = Take(setting); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::string Configuration::SourceOf(absl::string_view flag) const {
  const auto source = sources_.find(std::string(flag));
  return source == sources_.end() ? "default" : source->second;
}

std::string Configuration::Describe() const {
  std::string lines;
  for (const auto& [name, flag] : OwnFlags()) {
    if (IsAboutStart(name)) continue;
    absl::StrAppend(&lines, name, " = ", flag->CurrentValue(), "  # ",
                    absl::Utf8SafeCEscape(SourceOf(name)), "\n");
  }
  return lines;
}

}  // namespace sis
