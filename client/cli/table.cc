#include "client/cli/table.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

constexpr size_t kLongestName = 24, kShortestName = 8;

// Ids in ASCII mostly; of others a character may be cut, so they stay.
std::string Shortened(const std::string& name, size_t width) {
  if (name.size() <= width || Characters(name) < name.size()) return name;
  const size_t end = (width - 1) / 2;
  return absl::StrCat(name.substr(0, width - 1 - end), "…", name.substr(name.size() - end));
}

}  // namespace

Table::Table(const std::vector<Cell>& row) {
  for (const Cell& cell : row) {
    headings_.push_back({"", cell.heading});
    columns_.push_back(cell.column);
  }
}

void Table::AddRow(std::vector<Cell> cells) { lines_.push_back({std::move(cells)}); }

void Table::AddLine(std::string line) { lines_.push_back({{}, std::move(line)}); }

void Table::Fit(const Terminal& terminal) {
  shown_.assign(columns_.size(), true);
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t& width = columns_[i].width;
    width = std::max(width, Characters(headings_[i].text));
    for (const Line& line : lines_) {
      if (!line.cells.empty()) width = std::max(width, Characters(line.cells[i].text));
    }
  }
  if (!terminal.width.has_value()) return;
  const auto excess = [&] {
    size_t width = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (shown_[i]) width += columns_[i].width + (i > 0 ? 1 : 0);
    }
    return width > *terminal.width ? width - *terminal.width : 0;
  };
  const auto shorten_names = [&](size_t shortest) {
    size_t& width = columns_[0].width;
    if (width > shortest) width -= std::min(excess(), width - shortest);
  };
  shorten_names(kLongestName);
  while (excess() > 0) {
    size_t next = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (shown_[i] && columns_[i].goes > columns_[next].goes) next = i;
    }
    if (columns_[next].goes == 0) break;
    shown_[next] = false;
  }
  shorten_names(kShortestName);
}

std::string Table::Text(const std::vector<Cell>& cells, const Terminal& terminal) const {
  std::string text;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (!shown_[i]) continue;
    const bool shortens = i == 0 && terminal.width.has_value();
    const std::string cell = shortens ? Shortened(cells[i].text, columns_[i].width) : cells[i].text;
    const size_t characters = Characters(cell);
    const std::string space(columns_[i].width - std::min(columns_[i].width, characters), ' ');
    if (i > 0) text += ' ';
    if (!columns_[i].left) text += space;
    text += terminal.Painted(cell, cells[i].colour);
    if (columns_[i].left) text += space;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::vector<std::string> Table::TakeLines(const Terminal& terminal) {
  std::vector<std::string> lines;
  if (shown_.empty()) {
    Fit(terminal);
    lines.push_back(Text(headings_, terminal));
  }
  for (Line& line : lines_) {
    lines.push_back(line.cells.empty() ? std::move(line.text) : Text(line.cells, terminal));
  }
  lines_.clear();
  return lines;
}

void Table::Print() {
  for (const std::string& line : TakeLines(Terminal::OfStandardOutput())) std::cout << line << '\n';
}

}  // namespace sis
