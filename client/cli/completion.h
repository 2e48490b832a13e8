// What a shell completes after "sisctl".
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace sis {

// Scripts for bash and zsh, of the subcommands, options and choices that `sisctl` has. A shell
// completes without calling it.
std::string BashCompletion(const CLI::App& sisctl);
std::string ZshCompletion(const CLI::App& sisctl);

}  // namespace sis
