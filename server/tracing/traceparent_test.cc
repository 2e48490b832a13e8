#include "server/tracing/traceparent.h"

#include <gtest/gtest.h>

#include <string>

namespace sis {
namespace {

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParentId[] = "b7ad6b7169203331";

std::string Header(const std::string& version, const std::string& trace_id,
                   const std::string& parent_id, const std::string& flags) {
  return version + "-" + trace_id + "-" + parent_id + "-" + flags;
}

TEST(TraceParentTest, SaysWhoseSpanItIsAndWhetherItIsSampled) {
  for (const auto& [flags, sampled] : {std::pair("00", false),
                                       {"01", true},
                                       {"02", false},
                                       {"03", true},
                                       {"ff", true},
                                       {"fe", false}}) {
    const auto parent = ParseTraceParent(Header("00", kTraceId, kParentId, flags));
    ASSERT_TRUE(parent.has_value()) << flags;
    EXPECT_EQ(parent->trace_id, kTraceId);
    EXPECT_EQ(parent->parent_id, kParentId);
    EXPECT_EQ(parent->sampled, sampled) << flags;
  }
}

TEST(TraceParentTest, TakesLaterVersionsWithMoreBehind) {
  const std::string header = Header("01", kTraceId, kParentId, "01");
  EXPECT_TRUE(ParseTraceParent(header).has_value());
  EXPECT_TRUE(ParseTraceParent(header + "-more").has_value());
  EXPECT_FALSE(ParseTraceParent(header + "more").has_value());
}

TEST(TraceParentTest, TakesNothingElse) {
  const std::string header = Header("00", kTraceId, kParentId, "01");
  ASSERT_TRUE(ParseTraceParent(header).has_value());
  for (const std::string& broken :
       {std::string(), header.substr(0, 54), header + "-more", header + " ",
        Header("ff", kTraceId, kParentId, "01"), Header("0G", kTraceId, kParentId, "01"),
        Header("00", std::string(32, '0'), kParentId, "01"),
        Header("00", kTraceId, std::string(16, '0'), "01"),
        Header("00", "0AF7651916CD43DD8448EB211C80319C", kParentId, "01"),
        Header("00", kTraceId, kParentId, "0x")}) {
    EXPECT_FALSE(ParseTraceParent(broken).has_value()) << broken;
  }
  for (const size_t dash : {2, 35, 52}) {
    std::string broken = header;
    broken[dash] = '0';
    EXPECT_FALSE(ParseTraceParent(broken).has_value()) << broken;
  }
}

}  // namespace
}  // namespace sis
