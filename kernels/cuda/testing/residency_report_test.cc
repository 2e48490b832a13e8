// The report runs, and finds out what would make it wrong, on the host's memory too.
#include "kernels/cuda/testing/residency_report.h"

#include <sstream>

#include "gtest/gtest.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/decide/scalar_backend.h"

namespace sis::cuda {
namespace {

constexpr ResidencyReportOptions kSmall{.positions = 8192, .rounds = 2, .threads = 2};

TEST(ResidencyReport, OneLinePerCase) {
  std::ostringstream out;
  const auto backend = BackendOnHostStages(std::make_unique<ScalarBackend>(), 8,
                                           ResidentBlocks::kSlabBytes, When::kInAThread);
  const absl::Status status = ReportResidency(*backend, ScalarBackend(), kSmall, out);
  EXPECT_TRUE(status.ok()) << status;
  for (const char* line :
       {"\n| 10 | ", "\n| 50 | ", "\n| 100 | ", "\n| 10, cut | ", "\n| 100, cut | "}) {
    EXPECT_NE(out.str().find(line), std::string::npos) << out.str();
  }
  // Per line: three rounds that copy, three that find.
  const int64_t blocks = 8192 / 1024;
  EXPECT_EQ(backend->resident_blocks().copies, 15 * blocks);
  EXPECT_EQ(backend->resident_blocks().hits, 15 * blocks);
}

TEST(ResidencyReport, SaysThatTheMemoryIsTooSmall) {
  std::ostringstream out;
  const auto backend =
      BackendOnHostStages(std::make_unique<ScalarBackend>(), 1, size_t{16} << 10, When::kInAThread);
  EXPECT_EQ(ReportResidency(*backend, ScalarBackend(), kSmall, out).message(),
            "K = 10: the memory doesn't hold it all");
}

}  // namespace
}  // namespace sis::cuda
