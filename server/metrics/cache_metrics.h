// The cache and its runs, for Prometheus. docs/metrics.md says what each metric means.
#pragma once

#include <prometheus/collectable.h>

#include <vector>

#include "server/cache/run_registry.h"

namespace sis {

class CacheMetrics final : public prometheus::Collectable {
 public:
  // The registry must outlive it.
  explicit CacheMetrics(const RunRegistry& registry) : registry_(registry) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const RunRegistry& registry_;
};

}  // namespace sis
