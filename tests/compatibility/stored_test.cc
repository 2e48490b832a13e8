// What released versions have stored is read by this one, bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/compatibility/stored_fixture.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

std::string Contents(const std::filesystem::path& path) {
  std::ostringstream contents;
  contents << std::ifstream(path).rdbuf();
  return contents.str();
}

TEST(StoredTest, EveryVersionIsReadAsItWasWritten) {
  int versions = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/compatibility")) {
    if (!entry.is_directory()) continue;
    ++versions;
    const auto items = ItemsOfFile(Contents(entry.path() / "stored_items.base64"));
    ASSERT_TRUE(items.ok()) << entry << items.status();
    EXPECT_EQ(Describe(*items), Contents(entry.path() / "stored_records.txt")) << entry;
  }
  EXPECT_GT(versions, 0);
}

TEST(StoredTest, WithFloat32WhatIsReadIsWhatWasAppended) {
  EXPECT_THAT(Describe(MakeItems()), HasSubstr(DescribeAppended()));
}

TEST(StoredTest, ColumnsAreReadAsTheyWereAppended) {
  EXPECT_THAT(Describe(MakeItems()), HasSubstr(DescribeAppendedColumns()));
}

}  // namespace
}  // namespace sis
