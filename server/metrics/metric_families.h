// What Prometheus is shown of what others count, read when it asks. docs/metrics.md says what each
// metric means.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/decide/backend.h"
#include "server/cache/run_registry.h"

namespace sis {

using MetricFamilies = std::vector<prometheus::MetricFamily>;

// The cache and its runs.
MetricFamilies CacheMetrics(const RunRegistry& registry);

// What a device holds of blocks.
MetricFamilies DeviceCacheMetrics(const Backend& backend);

// The process itself, under the names that Prometheus's client libraries use. Families that can't
// be read on this system are left out.
MetricFamilies ProcessMetrics();

template <typename Value>
prometheus::ClientMetric Metric(prometheus::MetricType type, Value value,
                                std::vector<prometheus::ClientMetric::Label> labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
      static_cast<double>(value);
  return metric;
}

// Of one metric without labels.
template <typename Value>
prometheus::MetricFamily Family(const std::string& name, const std::string& help,
                                prometheus::MetricType type, Value value) {
  return {name, help, type, {Metric(type, value)}};
}

}  // namespace sis
