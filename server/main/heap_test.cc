#include "server/main/heap.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace sis {
namespace {

constexpr size_t kMebibyte = 1 << 20;

size_t ResidentBytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The buffers of messages, and between them what outlives them.
TEST(HeapTest, WhatIsFreeStaysUntilItIsGivenBack) {
  ConfigureHeap();
  const size_t before = ResidentBytes();
  std::vector<std::unique_ptr<char[]>> messages, kept;
  for (int i = 0; i < 100; ++i) {
    messages.push_back(std::make_unique<char[]>(kMebibyte));
    std::memset(messages.back().get(), i, kMebibyte);
    kept.push_back(std::make_unique<char[]>(100));
  }
  messages.clear();
  EXPECT_GT(ResidentBytes(), before + 90 * kMebibyte);
  GiveBackHeap();
  EXPECT_LT(ResidentBytes(), before + 10 * kMebibyte);
}

}  // namespace
}  // namespace sis
