// The process itself, for Prometheus, under the names that its client libraries use.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

namespace sis {

// Families that can't be read on this system are left out.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace sis
