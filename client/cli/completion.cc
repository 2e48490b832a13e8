#include "client/cli/completion.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace sis {
namespace {

struct Word {
  std::string text;
  std::string description;
};

// sisctl, or one of its subcommands.
struct Command {
  std::string path;  // "runs list"; of sisctl itself nothing
  std::vector<Word> options;
  std::vector<Word> next;  // subcommands, and what an argument may be
};

struct Description {
  std::vector<Command> commands;
  // By the names of options that take a value: which it may be; none where it may be anything.
  std::map<std::string, std::vector<std::string>> values;
};

// CLI11 says them in the name of the type: TEXT:{a,b}.
std::vector<std::string> Choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',');
}

void Describe(const CLI::App& app, const std::string& path, const std::vector<Word>& inherited,
              Description& description) {
  Command command{path, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      command.options.push_back({absl::StrCat("--", name), option->get_description()});
      if (option->get_items_expected_max() > 0) {
        description.values[absl::StrCat("--", name)] = Choices(*option);
      }
    }
    if (!option->get_positional()) continue;
    for (const std::string& choice : Choices(*option)) command.next.push_back({choice, ""});
  }
  // Options of sisctl itself may stand behind a subcommand; --help is each one's own.
  for (const Word& option : inherited) {
    if (option.text != "--help") command.options.push_back(option);
  }
  const std::vector<const CLI::App*> subcommands = app.get_subcommands({});
  for (const CLI::App* child : subcommands) {
    command.next.push_back({child->get_name(), child->get_description()});
  }
  const std::vector<Word> own = command.options;
  description.commands.push_back(std::move(command));
  for (const CLI::App* child : subcommands) {
    Describe(*child, path.empty() ? child->get_name() : absl::StrCat(path, " ", child->get_name()),
             own, description);
  }
}

std::string Texts(const std::vector<Word>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const Word& word) { *out += word.text; });
}

// Lines of a case: to which subcommand a word leads from another.
std::string Steps(const Description& description) {
  std::string lines;
  for (const Command& command : description.commands) {
    if (command.path.empty()) continue;
    const size_t space = command.path.rfind(' ');
    const std::string step =
        space == std::string::npos ? absl::StrCat(" ", command.path) : command.path;
    absl::StrAppendFormat(&lines, "          '%s') command='%s' ;;\n", step, command.path);
  }
  return lines;
}

// The same of what may be the value of an option.
std::string ValueChoices(const Description& description, absl::string_view assignment) {
  std::string lines;
  for (const auto& [name, choices] : description.values) {
    if (choices.empty()) continue;
    absl::StrAppend(&lines, "      ", name, ") ",
                    absl::StrReplaceAll(assignment, {{"@", absl::StrJoin(choices, " ")}}), " ;;\n");
  }
  return lines;
}

// Elements of an array of zsh: 'name:what it is'.
std::string DescribedWords(const std::vector<Word>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const Word& word) {
    absl::StrAppend(out, "'", word.text, ":",
                    absl::StrReplaceAll(word.description, {{"'", "'\\''"}}), "'");
  });
}

constexpr absl::string_view kBash =
    R"(# Completion of sisctl for bash:  source <(sisctl completion bash)
_sisctl() {
  local word=${COMP_WORDS[COMP_CWORD]} command= option= names= options= choices= i
  # The subcommand, and the option whose value comes next. Bash cuts words at = and : too.
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      = | :) ;;
      @OPTIONS_WITH_VALUES) option=${COMP_WORDS[i]} ;;
      -?*) option= ;;
      *)
        if [[ -n $option ]]; then option=; continue; fi
        case "$command ${COMP_WORDS[i]}" in
@STEPS        esac
        ;;
    esac
  done
  if [[ $word == = ]]; then word=; fi
  if [[ -n $option ]]; then
    case $option in
@VALUES    esac
  else
    case $command in
@COMMANDS    esac
    if [[ $word == -* ]]; then choices=$options; else choices=$names; fi
  fi
  # Without choices bash completes names of files.
  COMPREPLY=($(compgen -W "$choices" -- "$word"))
}
complete -o default -F _sisctl sisctl
)";

constexpr absl::string_view kZsh =
    R"(#compdef sisctl
# Completion of sisctl for zsh:  source <(sisctl completion zsh), after compinit; or the file _sisctl
# in a folder of $fpath.
_sisctl() {
  local command= option= i
  local -a names flags choices
  for ((i = 2; i < CURRENT; ++i)); do
    if [[ -n $option ]]; then option=; continue; fi
    case $words[i] in
      @OPTIONS_WITH_VALUES) option=$words[i] ;;
      -?*) ;;
      *)
        case "$command $words[i]" in
@STEPS        esac
        ;;
    esac
  done
  if [[ -z $option && $words[CURRENT] == --*=* ]]; then
    option=${words[CURRENT]%%=*}
    compset -P '*='
  fi
  if [[ -n $option ]]; then
    case $option in
@VALUES    esac
    if (( $#choices )); then compadd -a choices; else _files; fi
    return
  fi
  case $command in
@COMMANDS  esac
  if [[ $words[CURRENT] == -* ]]; then
    _describe -o option flags
  elif (( $#names )); then
    _describe command names
  else
    _files
  fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _sisctl "$@"; else compdef _sisctl sisctl; fi
)";

// `text` with what sisctl has in the places of its names. Of the value of an option `assignment`
// says which it may be; `line` is that of a subcommand.
std::string Script(const CLI::App& sisctl, absl::string_view text, absl::string_view assignment,
                   std::string (*line)(const Command& command)) {
  Description description;
  Describe(sisctl, "", {}, description);
  const auto add_name = [](std::string* out, const auto& named) { *out += named.first; };
  const auto add_line = [&](std::string* out, const Command& command) { *out += line(command); };
  return absl::StrReplaceAll(
      text, {{"@OPTIONS_WITH_VALUES", absl::StrJoin(description.values, " | ", add_name)},
             {"@STEPS", Steps(description)},
             {"@VALUES", ValueChoices(description, assignment)},
             {"@COMMANDS", absl::StrJoin(description.commands, "", add_line)}});
}

}  // namespace

std::string BashCompletion(const CLI::App& sisctl) {
  return Script(sisctl, kBash, "choices='@'", [](const Command& command) {
    return absl::StrFormat("      '%s') names='%s' options='%s' ;;\n", command.path,
                           Texts(command.next), Texts(command.options));
  });
}

std::string ZshCompletion(const CLI::App& sisctl) {
  return Script(sisctl, kZsh, "choices=(@)", [](const Command& command) {
    return absl::StrFormat("    '%s')\n      names=(%s)\n      flags=(%s)\n      ;;\n",
                           command.path, DescribedWords(command.next),
                           DescribedWords(command.options));
  });
}

}  // namespace sis
