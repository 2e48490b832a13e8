#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include "kernels/testing/scalar_backend.h"
#include "server/metrics/metric_families.h"

namespace sis {
namespace {

class WithStats final : public Backend {
 public:
  std::string_view name() const override { return "with_stats"; }
  void Evaluate(const EvaluateParameters& parameters,
                std::span<const BackendRange> segments) const override {
    ScalarBackend().Evaluate(parameters, segments);
  }
  ResidentBlocksStats resident_blocks() const override {
    return {.capacity_bytes = 7340032,
            .used_bytes = 4096,
            .hits = 11,
            .copies = 5,
            .passes = 3,
            .evictions = 2};
  }
};

TEST(DeviceCacheMetrics, ShowTheNumbersOfTheBackend) {
  const WithStats backend;
  const std::string page = prometheus::TextSerializer().Serialize(DeviceCacheMetrics(backend));
  for (const char* line :
       {"# TYPE sis_device_cache_budget_bytes gauge\n", "sis_device_cache_budget_bytes 7340032\n",
        "# TYPE sis_device_cache_bytes gauge\n", "sis_device_cache_bytes 4096\n",
        "# TYPE sis_device_cache_reads_total counter\n",
        "sis_device_cache_reads_total{result=\"hit\"} 11\n",
        "sis_device_cache_reads_total{result=\"copied\"} 5\n",
        "sis_device_cache_reads_total{result=\"passed\"} 3\n",
        "# TYPE sis_device_cache_evictions_total counter\n",
        "sis_device_cache_evictions_total 2\n"}) {
    EXPECT_NE(page.find(line), std::string::npos) << line << "is not in\n" << page;
  }
}

}  // namespace
}  // namespace sis
