#include "client/cli/servers_behind.h"

#include <gtest/gtest.h>

#include <string>

namespace sis {
namespace {

std::string LookedUp(const std::string& address) {
  const std::optional<LookedUpName> name = NameToLookUp(address);
  return name.has_value() ? name->dns_server + "|" + name->host + "|" + name->port : "";
}

TEST(ServersBehindTest, NamesAreLookedUpAndNothingElse) {
  EXPECT_EQ(LookedUp("sis.rl.svc:50051"), "|sis.rl.svc|50051");
  EXPECT_EQ(LookedUp("dns:sis:50051"), "|sis|50051");
  EXPECT_EQ(LookedUp("dns:///sis.rl.svc:50051"), "|sis.rl.svc|50051");
  EXPECT_EQ(LookedUp("dns://10.0.0.10:53/sis:50051"), "10.0.0.10:53|sis|50051");
  for (const char* other :
       {"", "sis", "sis:", "dns:///sis", "dns://sis", "localhost:50051", "dns:///localhost:1",
        "127.0.0.1:50051", "10.0.0.1:50051", "[::1]:50051", "[fd00::1]:50051", "ipv4:10.0.0.1:1",
        "ipv4:10.0.0.1:1,10.0.0.2:1", "ipv6:[fd00::1]:1", "unix:/run/sis/socket",
        "unix-abstract:sis", "xds:///sis:1"}) {
    EXPECT_EQ(LookedUp(other), "") << other;
    EXPECT_TRUE(ServersBehind(other).empty()) << other;
  }
}

}  // namespace
}  // namespace sis
