#include "client/cli/command_line.h"

#include <algorithm>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sis {
namespace {

bool Contains(std::span<const absl::string_view> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A flag as written: its name and, if given with "=", its value.
struct WrittenFlag {
  std::string name;
  std::optional<std::string> value;
};

WrittenFlag Split(absl::string_view word) {
  absl::ConsumePrefix(&word, "--");
  const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  WrittenFlag flag{parts.first, std::nullopt};
  if (absl::StrContains(word, '=')) flag.value = parts.second;
  return flag;
}

absl::Status UnknownFlag(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
}

std::string Usage(const Subcommand& subcommand) {
  return absl::StrCat(subcommand.name, subcommand.arguments.empty() ? "" : " ",
                      absl::StrJoin(subcommand.arguments, " "));
}

void AppendFlags(std::span<const absl::string_view> names, std::string& help) {
  for (const absl::string_view name : names) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const std::string shown = flag->IsOfType<bool>()
                                  ? absl::StrCat("--", name)
                                  : absl::StrCat("--", name, "=", flag->DefaultValue());
    absl::StrAppendFormat(&help, "  %-28s %s\n", shown, flag->Help());
  }
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const absl::string_view> words,
                                             std::span<const Subcommand* const> subcommands,
                                             std::span<const absl::string_view> global_flags) {
  CommandLine command_line;
  std::vector<std::string> flag_names;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::StartsWith(words[i], "--")) {
      command_line.arguments.emplace_back(words[i]);
      continue;
    }
    WrittenFlag written = Split(words[i]);
    if (written.name == "help" && !written.value) {
      command_line.help = true;
      continue;
    }
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(written.name);
    if (flag == nullptr && absl::StartsWith(written.name, "no") && !written.value) {
      written.name.erase(0, 2);
      flag = absl::FindCommandLineFlag(written.name);
      if (flag == nullptr || !flag->IsOfType<bool>()) return UnknownFlag("no" + written.name);
      written.value = "false";
    }
    if (flag == nullptr) return UnknownFlag(written.name);
    if (!written.value && flag->IsOfType<bool>()) written.value = "true";
    if (!written.value) {
      if (++i == words.size()) {
        return absl::InvalidArgumentError(absl::StrCat("--", written.name, " needs a value"));
      }
      written.value = std::string(words[i]);
    }
    flag_names.push_back(written.name);
    std::string error;
    if (!flag->ParseFrom(*written.value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", written.name, ": \"", *written.value, "\" is not a valid value"));
    }
  }

  std::vector<std::string>& arguments = command_line.arguments;
  for (const Subcommand* subcommand : subcommands) {
    const std::vector<std::string> name = absl::StrSplit(subcommand->name, ' ');
    if (arguments.size() >= name.size() &&
        std::equal(name.begin(), name.end(), arguments.begin())) {
      command_line.subcommand = subcommand;
      arguments.erase(arguments.begin(), arguments.begin() + static_cast<ptrdiff_t>(name.size()));
      break;
    }
  }
  const Subcommand* subcommand = command_line.subcommand;
  for (const std::string& name : flag_names) {
    if (Contains(global_flags, name)) continue;
    if (subcommand == nullptr || !Contains(subcommand->flags, name)) return UnknownFlag(name);
  }
  if (command_line.help) return command_line;
  if (subcommand == nullptr) {
    return absl::InvalidArgumentError(
        arguments.empty() ? "no subcommand"
                          : absl::StrCat("unknown subcommand ", absl::StrJoin(arguments, " ")));
  }
  if (arguments.size() != subcommand->arguments.size()) {
    return absl::InvalidArgumentError(absl::StrCat("usage: sisctl ", Usage(*subcommand)));
  }
  if (subcommand->check != nullptr) {
    const absl::Status status = subcommand->check(arguments);
    if (!status.ok()) return status;
  }
  return command_line;
}

std::string Help(const Subcommand* subcommand, std::span<const Subcommand* const> subcommands,
                 std::span<const absl::string_view> global_flags) {
  std::string help;
  if (subcommand == nullptr) {
    help = "sisctl: talk to a SIS ratio service.\n\nSubcommands:\n";
    for (const Subcommand* each : subcommands) {
      absl::StrAppendFormat(&help, "  %-28s %s\n", Usage(*each), each->summary);
    }
  } else {
    help = absl::StrCat("sisctl ", Usage(*subcommand), ": ", subcommand->summary, "\n");
    if (!subcommand->details.empty()) absl::StrAppend(&help, "\n", subcommand->details, "\n");
    absl::StrAppend(&help, "\nFlags:\n");
    AppendFlags(subcommand->flags, help);
  }
  absl::StrAppend(&help, "\nGlobal flags:\n");
  AppendFlags(global_flags, help);
  absl::StrAppend(&help,
                  "  --help                       Show this, or with a subcommand what it does.\n",
                  "\nExit status: 0 done, 1 failed, 2 wrong usage.\n");
  return help;
}

}  // namespace sis
