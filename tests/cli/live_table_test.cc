// What `cadre bench` shows while it measures, on terminals and in pipes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terminal.h"

namespace cadre::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Advance, TimeLeftIsThatOfTheStepsThatAreDone) {
  const Advance nine(9);
  EXPECT_EQ(nine.line_after(0, 3, "gmm", 80), "[------------------------] 0/9  --:-- left  gmm");
  EXPECT_EQ(nine.line_after(3, 30, "gmm", 80), "[########----------------] 3/9  1:00 left  gmm");
  EXPECT_EQ(nine.line_after(9, 9000, "", 80), "[########################] 9/9  0:00 left  ");
  EXPECT_THAT(Advance(120).line_after(1, 31, "x", 80), HasSubstr("  1/120  61:29 left"));
}

TEST(Advance, TheLineNeverLeavesTheTerminal) {
  const std::string line = Advance(9).line_after(3, 30, std::string(300, 'x'), 39);
  EXPECT_EQ(line.size(), 39u);
  EXPECT_THAT(line, StartsWith("[####"));
  EXPECT_EQ(Advance(0).line_after(0, 0, "", 30).size(), 30u);
}

TEST(Table, AColouredCellIsAsWideAsItLooks) {
  const Table table({{"check", 6}, {"n", 4, true}, {"end", 3}}, true);
  const std::string green = "\033[32mpass\033[0m";
  EXPECT_EQ(table.text_of({green, "7", "x"}), green + "       7  x");
  EXPECT_EQ(table.text_of({"pass", "7", "x"}), "pass       7  x");
  EXPECT_EQ(table.text_of({"wider than it", "7"}), "wider than it     7");
}

}  // namespace
}  // namespace cadre::cli
