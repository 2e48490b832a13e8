// What a device holds of recorded rows, for Prometheus. docs/metrics.md says what each means.
#pragma once

#include <prometheus/collectable.h>

#include <vector>

#include "kernels/decide/backend.h"

namespace sis {

class DeviceCacheMetrics final : public prometheus::Collectable {
 public:
  // The backend must outlive it.
  explicit DeviceCacheMetrics(const Backend& backend) : backend_(backend) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Backend& backend_;
};

}  // namespace sis
