// Tables that fit a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/cli/terminal.h"

namespace sis {

struct Column {
  size_t width = 0;   // characters, at least
  bool left = false;  // where its text stands
  // Where a line would be too long, columns go, that with the highest number first; 0 stays.
  int goes = 0;
};

// With what stands above it.
struct Cell {
  std::string heading;
  std::string text;
  Column column = {};
  Colour colour = Colour::kNone;
};

// What is no terminal gets all columns, as wide as they must be. On one that is too narrow the
// first column, which names the row, is shortened to 24 characters; then columns go in the order
// that they give; then the first is shortened further. Of a name its middle is left out.
class Table {
 public:
  // Of rows such as this one, which isn't shown.
  explicit Table(const std::vector<Cell>& row);

  // With the headings and columns of the others.
  void AddRow(std::vector<Cell> cells);
  // Between rows, as it is.
  void AddLine(std::string line);

  // What was added since the last call, behind a line with the headings the first time. The columns
  // that this finds are those of later calls too.
  std::vector<std::string> TakeLines(const Terminal& terminal);
  // To standard output.
  void Print();

 private:
  struct Line {
    std::vector<Cell> cells;  // none: `text`
    std::string text = {};
  };

  void Fit(const Terminal& terminal);
  std::string Text(const std::vector<Cell>& cells, const Terminal& terminal) const;

  std::vector<Cell> headings_;
  std::vector<Column> columns_;
  std::vector<Line> lines_;
  // By column, once they are found.
  std::vector<bool> shown_;
};

}  // namespace sis
