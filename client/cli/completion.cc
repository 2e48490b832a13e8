#include "client/cli/completion.h"

#include <iostream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/subcommands.h"

namespace sis {
namespace {

// Options of sisctl itself may stand behind a subcommand.
const CLI::Option* Named(const CLI::App* app, const std::string& name) {
  for (; app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* option = app->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

bool TakesValue(const CLI::Option* option) {
  return option != nullptr && option->get_items_expected_max() > 0;
}

// CLI11 says them in the name of the type: TEXT:{a,b}.
std::string Choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return absl::StrCat(absl::StrReplaceAll(type.substr(begin + 1, end - begin - 1), {{",", "\n"}}),
                      "\n");
}

std::string Options(const CLI::App& sisctl) {
  std::string lines;
  for (const CLI::App* app = &sisctl; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        // Each has its own.
        if (app != &sisctl && name == "help") continue;
        absl::StrAppend(&lines, "--", name, ":", option->get_description(), "\n");
      }
    }
  }
  return lines;
}

constexpr char kBash[] =
    R"sh(# Completion of sisctl for bash:  source <(sisctl completion bash)
_sisctl() {
  local line=${COMP_LINE:0:COMP_POINT} typed=${COMP_WORDS[COMP_CWORD]} words
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  # Bash cuts words at = and : too.
  [[ $typed != = ]] || typed=
  # Without choices bash completes names of files.
  COMPREPLY=($(compgen -W "$("$1" completion bash -- "${words[@]:1}" 2>/dev/null | cut -d: -f1)" -- "$typed"))
}
complete -o default -F _sisctl sisctl
)sh";

constexpr char kZsh[] =
    R"sh(#compdef sisctl
# Completion of sisctl for zsh:  source <(sisctl completion zsh), after compinit; or the file _sisctl
# in a folder of $fpath.
_sisctl() {
  local -a found
  found=("${(@f)$("${words[1]}" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compset -P '--*='
  if [[ -n $found[1] ]]; then _describe sisctl found; else _files; fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _sisctl "$@"; else compdef _sisctl sisctl; fi
)sh";

}  // namespace

std::string Completions(const CLI::App& sisctl, const std::vector<std::string>& words) {
  const CLI::App* app = &sisctl;
  const CLI::Option* option = nullptr;  // whose value comes next
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (TakesValue(option)) {
      option = nullptr;
    } else if (absl::StartsWith(words[i], "-")) {
      option = Named(app, words[i]);
    } else {
      const auto named = [&](const CLI::App* child) { return child->get_name() == words[i]; };
      for (const CLI::App* child : app->get_subcommands(named)) app = child;
    }
  }
  const std::string typed = words.empty() ? "" : words.back();
  if (TakesValue(option)) return Choices(*option);
  if (absl::StartsWith(typed, "-")) {
    const size_t end = typed.find('=');
    option = end == std::string::npos ? nullptr : Named(app, typed.substr(0, end));
    return TakesValue(option) ? Choices(*option) : Options(*app);
  }
  std::string lines;
  for (const CLI::App* next : app->get_subcommands({})) {
    absl::StrAppend(&lines, next->get_name(), ":", next->get_description(), "\n");
  }
  for (const CLI::Option* argument : app->get_options()) {
    if (argument->get_positional()) lines += Choices(*argument);
  }
  return lines;
}

void AddCompletion(CLI::App& sisctl, LocalAction& action) {
  CLI::App& app = *sisctl.add_subcommand("completion", "Print what completes commands in a shell.");
  app.footer(
      "In ~/.bashrc or, after compinit, ~/.zshrc:  source <(sisctl "
      "completion SHELL)");
  const auto shell = std::make_shared<std::string>();
  const auto words = std::make_shared<std::vector<std::string>>();
  app.add_option("SHELL", *shell, "bash or zsh.")
      ->required()
      ->default_str("")
      ->check(CLI::IsMember({"bash", "zsh"}));
  app.add_option("WORDS", *words, "What has been typed, behind --: says what may come next.")
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
      ->default_str("");
  app.callback([&sisctl, shell, words, &action] {
    action = [&sisctl, shell, words]() -> absl::StatusOr<ExitStatus> {
      std::cout << (!words->empty()    ? Completions(sisctl, *words)
                    : *shell == "bash" ? kBash
                                       : kZsh);
      return ExitStatus::kDone;
    };
  });
}

}  // namespace sis
