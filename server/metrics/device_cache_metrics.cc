#include "server/metrics/metric_families.h"

namespace sis {

MetricFamilies DeviceCacheMetrics(const Backend& backend) {
  using enum prometheus::MetricType;
  const ResidentBlocksStats stats = backend.resident_blocks();
  const auto read = [](const char* result, int64_t count) {
    return Metric(Counter, count, {{"result", result}});
  };
  return {
      Family("sis_device_cache_budget_bytes", "Bytes on the device for copies of blocks.", Gauge,
             stats.capacity_bytes),
      Family("sis_device_cache_bytes", "Bytes on the device that hold copies of blocks.", Gauge,
             stats.used_bytes),
      {"sis_device_cache_reads_total",
       "Ranges of blocks that the device evaluated, by where it read them.",
       Counter,
       {read("hit", stats.hits), read("copied", stats.copies), read("passed", stats.passes)}},
      Family("sis_device_cache_evictions_total", "Copies of blocks that made room for others.",
             Counter, stats.evictions),
  };
}

}  // namespace sis
