#include "server/auth/addresses.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace sis {
namespace {

TEST(AddressesTest, RecognisesAddressesOfThisMachine) {
  std::ifstream file("server/auth/addresses.txt");
  std::map<std::string, int> seen;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    const std::string kind = line.substr(0, line.find(' '));
    const std::string address = line.substr(line.rfind(' ') + 1);
    ++seen[kind];
    EXPECT_EQ(IsUnixSocket(address), kind == "socket") << address;
    EXPECT_EQ(IsLocal(address), kind != "elsewhere") << address;
  }
  EXPECT_EQ(seen.size(), 3);
  EXPECT_FALSE(IsLocal(""));
}

}  // namespace
}  // namespace sis
