// Metric families that are collected from other modules at each scrape. docs/metrics.md describes
// the metrics.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/decide/backend.h"
#include "server/cache/run_registry.h"

namespace sis {

using MetricFamilies = std::vector<prometheus::MetricFamily>;

// Returns the metrics of the cache and its runs.
MetricFamilies CacheMetrics(const RunRegistry& registry);

// Returns the metrics of the blocks in a device's memory.
MetricFamilies DeviceCacheMetrics(const Backend& backend);

// Returns the metrics of the process, with the names that Prometheus's client libraries use. Omits
// families that this system doesn't provide.
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

// Returns a family of one metric without labels.
template <typename Value>
prometheus::MetricFamily Family(const std::string& name, const std::string& help,
                                prometheus::MetricType type, Value value) {
  return {name, help, type, {Metric(type, value)}};
}

}  // namespace sis
