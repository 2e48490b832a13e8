// What standard output can show, and text that fits it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sis {

enum class Colour { kNone, kGreen, kYellow, kRed };

// By default what is no terminal: a file or a pipe, which gets everything, and no colours.
struct Terminal {
  // Not where NO_COLOR is set (https://no-color.org), or TERM is "dumb".
  bool colours = false;
  // Characters in a line, and lines.
  std::optional<size_t> width = std::nullopt;
  size_t height = 0;

  static Terminal OfStandardOutput();

  std::string Painted(absl::string_view text, Colour colour) const;
};

// Characters of UTF-8; what sets a colour is none.
size_t Characters(absl::string_view text);

// The first `width` characters of each of the first `height` lines.
std::vector<std::string> Cropped(std::vector<std::string> lines, size_t width, size_t height);

// The line in several that fit, broken at spaces; those after the first begin with `indent` of
// them.
std::vector<std::string> Wrapped(std::string line, const Terminal& terminal, size_t indent);

}  // namespace sis
