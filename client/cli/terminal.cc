#include "client/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

bool IsSet(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// Where the character, or the setting of a colour (ESC [ ... m), ends that begins at `begin`.
size_t EndOfNext(absl::string_view text, size_t begin) {
  if (text[begin] == '\x1b') {
    const size_t end = text.find('m', begin);
    return end == absl::string_view::npos ? text.size() : end + 1;
  }
  size_t end = begin + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return end;
}

}  // namespace

Terminal Terminal::OfStandardOutput() {
  winsize size = {};
  if (isatty(STDOUT_FILENO) == 0) return {};
  Terminal terminal;
  const char* term = std::getenv("TERM");
  terminal.colours = !IsSet("NO_COLOR") && (term == nullptr || absl::string_view(term) != "dumb");
  // Of a size of 0 nothing is known.
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
    terminal.height = size.ws_row;
  }
  return terminal;
}

std::string Terminal::Painted(absl::string_view text, Colour colour) const {
  if (!colours || text.empty() || colour == Colour::kNone) return std::string(text);
  static constexpr absl::string_view kByColour[] = {"", "32", "33", "1;31"};
  return absl::StrCat("\x1b[", kByColour[static_cast<size_t>(colour)], "m", text, "\x1b[0m");
}

size_t Characters(absl::string_view text) {
  size_t characters = 0;
  for (size_t i = 0; i < text.size(); i = EndOfNext(text, i)) {
    if (text[i] != '\x1b') ++characters;
  }
  return characters;
}

std::vector<std::string> Cropped(std::vector<std::string> lines, size_t width, size_t height) {
  if (lines.size() > height) lines.resize(height);
  for (std::string& line : lines) {
    std::string kept;
    size_t characters = 0;
    for (size_t i = 0; i < line.size();) {
      const size_t end = EndOfNext(line, i);
      // Colours are also set behind the last character: one that has begun must end.
      if (line[i] == '\x1b' || ++characters <= width) kept.append(line, i, end - i);
      i = end;
    }
    line = std::move(kept);
  }
  return lines;
}

std::vector<std::string> Wrapped(std::string line, const Terminal& terminal, size_t indent) {
  std::vector<std::string> lines;
  while (terminal.width.has_value() && Characters(line) > *terminal.width) {
    size_t characters = 0, last_space = 0;
    for (size_t i = 0; i < line.size() && characters <= *terminal.width; i = EndOfNext(line, i)) {
      if (line[i] == ' ' && i > indent) last_space = i;
      if (line[i] != '\x1b') ++characters;
    }
    if (last_space == 0) break;  // a word that is longer
    lines.push_back(line.substr(0, last_space));
    const absl::string_view rest = absl::string_view(line).substr(last_space);
    line = absl::StrCat(std::string(indent, ' '), absl::StripLeadingAsciiWhitespace(rest));
  }
  lines.push_back(std::move(line));
  return lines;
}

}  // namespace sis
