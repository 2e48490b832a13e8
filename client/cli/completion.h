// What a shell completes after "sisctl".
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace sis {

// What may stand in the place of the last of `words`, which is being typed
// behind the others: a line for each, WORD or WORD:what it is. Nothing where
// anything may.
std::string Completions(const CLI::App& sisctl, const std::vector<std::string>& words);

}  // namespace sis
