// For collectables that read what they show when Prometheus asks.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

namespace sis {

inline prometheus::ClientMetric Metric(prometheus::MetricType type, double value,
                                       std::vector<prometheus::ClientMetric::Label> labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

// Of one metric without labels.
inline prometheus::MetricFamily Family(const std::string& name, const std::string& help,
                                       prometheus::MetricType type, double value) {
  return {name, help, type, {Metric(type, value)}};
}

}  // namespace sis
