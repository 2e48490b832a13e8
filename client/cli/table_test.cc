#include "client/cli/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<Cell> Row(const std::string& name, const char* count, const char* label) {
  return {{"NAME", name, {.left = true}},
          {"COUNT", count, {.width = 8, .goes = 1}},
          {"LABEL", label, {.width = 10, .left = true, .goes = 2}}};
}

Table ThreeColumns() {
  Table table(Row("", "", ""));
  table.AddRow(Row("a", "1", "one"));
  table.AddLine("  a line of its own");
  table.AddRow(Row("a-name-of-thirty-characters-aa", "22", "two"));
  return table;
}

TEST(TableTest, WhatIsNoTerminalGetsAll) {
  EXPECT_THAT(ThreeColumns().TakeLines({}),
              ElementsAre("NAME                              COUNT LABEL",
                          "a                                     1 one", "  a line of its own",
                          "a-name-of-thirty-characters-aa       22 two"));
}

// Characters of a line: 30 + 1 + 8 + 1 + 10.
TEST(TableTest, NamesAreShortenedThenColumnsGoInTheirOrderThenNamesAgain) {
  const auto row = [](size_t width) { return ThreeColumns().TakeLines({.width = width})[3]; };
  EXPECT_EQ(row(50), "a-name-of-thirty-characters-aa       22 two");
  EXPECT_EQ(row(45), "a-name-of-th…haracters-aa       22 two") << "25 characters are enough";
  EXPECT_EQ(row(44), "a-name-of-th…aracters-aa       22 two");
  EXPECT_EQ(row(43), "a-name-of-th…aracters-aa       22");
  EXPECT_EQ(row(32), "a-name-of-th…aracters-aa");
  EXPECT_EQ(row(12), "a-name…rs-aa");
  EXPECT_EQ(row(3), "a-na…-aa") << "no less";
}

TEST(TableTest, NoLineIsLongerThanTheTerminal) {
  for (size_t width = 8; width < 60; ++width) {
    Table table = ThreeColumns();
    for (const std::string& line : table.TakeLines({.width = width})) {
      if (line != "  a line of its own") {
        EXPECT_LE(Characters(line), width) << line;
      }
    }
  }
}

TEST(TableTest, LaterLinesStandInTheSameColumns) {
  Table table = ThreeColumns();
  const Terminal narrow = {.width = 43};
  EXPECT_THAT(table.TakeLines(narrow)[0], Not(HasSubstr("LABEL")));
  table.AddRow(Row(std::string(60, 'b'), "3", "three"));
  table.AddRow(Row("c", "4", "four"));
  EXPECT_THAT(table.TakeLines(narrow), ElementsAre("bbbbbbbbbbbb…bbbbbbbbbbb        3",
                                                   "c                               4"));
  EXPECT_TRUE(table.TakeLines(narrow).empty());
}

TEST(TableTest, ColoursTakeNoRoom) {
  const std::vector<Cell> row = {{"A", "1", {.width = 4}, Colour::kRed},
                                 {"B", "2", {.width = 4, .left = true}, Colour::kGreen}};
  Table table(row);
  table.AddRow(row);
  EXPECT_EQ(table.TakeLines({.colours = true})[1], "   \x1b[1;31m1\x1b[0m \x1b[32m2\x1b[0m");
}

TEST(TerminalTest, ColoursAreSetOnlyWhereTheyAreShown) {
  EXPECT_EQ(Terminal{}.Painted("text", Colour::kRed), "text");
  const Terminal coloured = {.colours = true};
  EXPECT_EQ(coloured.Painted("text", Colour::kYellow), "\x1b[33mtext\x1b[0m");
  EXPECT_EQ(coloured.Painted("text", Colour::kNone), "text");
  EXPECT_EQ(coloured.Painted("", Colour::kRed), "");
  EXPECT_EQ(Characters("\x1b[33m▁é\x1b[0m!"), 3);
}

TEST(TerminalTest, WhatIsCroppedLeavesNoColourBehind) {
  EXPECT_THAT(Cropped({"a\x1b[33mbcd\x1b[0mef", "▁▂▃▄", "gone"}, 2, 2),
              ElementsAre("a\x1b[33mb\x1b[0m", "▁▂"));
}

TEST(TerminalTest, WrappedLinesFitAndKeepEveryWord) {
  const std::string text = "  The ▁accept rate\x1b[31m fell\x1b[0m to 0.1, far below its own past.";
  EXPECT_THAT(Wrapped(text, {}, 4), ElementsAre(text));
  for (size_t width = 12; width < 70; ++width) {
    const std::vector<std::string> lines = Wrapped(text, {.width = width}, 4);
    std::string joined;
    for (const std::string& line : lines) {
      EXPECT_LE(Characters(line), width);
      absl::StrAppend(&joined, joined.empty() ? line : line.substr(3));
    }
    EXPECT_EQ(joined, text) << width;
  }
  EXPECT_THAT(Wrapped("a-word-without-an-end and", {.width = 8}, 2),
              ElementsAre("a-word-without-an-end and"));
}

}  // namespace
}  // namespace sis
