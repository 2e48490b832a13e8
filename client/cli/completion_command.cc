#include <iostream>
#include <memory>
#include <string>

#include "client/cli/completion.h"
#include "client/cli/subcommands.h"

namespace sis {

void AddCompletion(CLI::App& sisctl, LocalAction& action) {
  CLI::App& app = *sisctl.add_subcommand("completion", "Print what completes commands in a shell.");
  app.footer("In ~/.bashrc or, after compinit, ~/.zshrc:  source <(sisctl completion SHELL)");
  const auto shell = std::make_shared<std::string>();
  app.add_option("SHELL", *shell, "bash or zsh.")
      ->required()
      ->default_str("")
      ->check(CLI::IsMember({"bash", "zsh"}));
  app.callback([&sisctl, shell, &action] {
    action = [&sisctl, shell]() -> absl::StatusOr<ExitStatus> {
      std::cout << (*shell == "bash" ? BashCompletion(sisctl) : ZshCompletion(sisctl));
      return ExitStatus::kDone;
    };
  });
}

}  // namespace sis
