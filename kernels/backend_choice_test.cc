#include "kernels/backend_choice.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/decide/simd_backend.h"

namespace sis {
namespace {

using ::testing::AnyOf;
using ::testing::StartsWith;

TEST(BackendChoice, Names) {
  EXPECT_EQ(ParseBackendKind("auto"), BackendKind::kAuto);
  EXPECT_EQ(ParseBackendKind("cpu"), BackendKind::kCpu);
  EXPECT_EQ(ParseBackendKind("cuda"), BackendKind::kCuda);
  EXPECT_EQ(ParseBackendKind("CUDA"), std::nullopt);
  EXPECT_EQ(ParseBackendKind(""), std::nullopt);
}

TEST(BackendChoice, TheCpuIfAsked) {
  const BackendChoice choice = ChooseBackend(BackendKind::kCpu);
  EXPECT_EQ(choice.backend->name(), SimdBackend().name());
  EXPECT_EQ(choice.reason, "as asked");
}

// Holds on machines with and without a GPU.
TEST(BackendChoice, ChoosesCudaOrTheCpuWithTheReason) {
  for (const BackendKind kind : {BackendKind::kAuto, BackendKind::kCuda}) {
    const bool asked = kind == BackendKind::kCuda;
    const BackendChoice choice = ChooseBackend(kind);
    if (std::string(choice.backend->name()).starts_with("cuda/")) {
      EXPECT_EQ(choice.reason, asked ? "as asked" : "auto");
      continue;
    }
    EXPECT_EQ(choice.backend->name(), SimdBackend().name());
    const std::string prefix = asked ? "asked for cuda, but " : "auto, ";
    EXPECT_THAT(choice.reason, AnyOf(StartsWith(prefix + "no CUDA device"),
                                     StartsWith(prefix + "built without CUDA")));
  }
}

}  // namespace
}  // namespace sis
