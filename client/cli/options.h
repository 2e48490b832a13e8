// Options that are declared alike in several subcommands.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "absl/flags/marshalling.h"

namespace sis {

// An integer. CLI11 alone would read -1 as 2^64 - 1, a number that is too large as the largest, and
// 010 as eight.
template <typename Integer>
CLI::Option* AddInteger(CLI::App& app, const std::string& name, Integer& value,
                        const std::string& description) {
  const auto parse = [](std::string& text) {
    Integer integer;
    std::string error;
    if (!absl::ParseFlag(text, &integer, &error)) return "\"" + text + "\" is not a valid value";
    text = absl::UnparseFlag(integer);
    return std::string();
  };
  return app.add_option(name, value, description)->transform(CLI::Validator(parse, ""));
}

inline void AddJson(CLI::App& app, bool& json) {
  app.add_flag("--json,!--nojson", json, "Print JSON.");
}

}  // namespace sis
