#include "server/store/open_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sis {
namespace {

TEST(OpenStoreTest, ThereIsNoneForMemory) { EXPECT_EQ(*OpenStore("memory"), nullptr); }

TEST(OpenStoreTest, SaysWhatIsWrong) {
  for (const auto& [description, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "neither memory"},
           {"redis:localhost", "neither memory"},
           {"redis://", "redis"},
           {"rocksdb:", "not rocksdb:DIR"},
           {"rocksdb:/tmp/x?sync=2", "not rocksdb:DIR"},
       }) {
    const absl::Status status = OpenStore(description).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << description;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(what));
  }
}

}  // namespace
}  // namespace sis
