// Counts and times of what a store is asked, for Prometheus. docs/metrics.md says what each means.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sis {

// Thread-safe.
class StoreMetrics {
 public:
  // The registry must outlive the object.
  explicit StoreMetrics(prometheus::Registry& registry);
  StoreMetrics(const StoreMetrics&) = delete;
  StoreMetrics& operator=(const StoreMetrics&) = delete;

  void CountOperation(const std::string& operation, absl::StatusCode code, absl::Duration duration);
  void AddBytes(int64_t written, int64_t read);

 private:
  prometheus::Family<prometheus::Counter>& operations_;
  prometheus::Family<prometheus::Histogram>& seconds_;
  prometheus::Counter& written_bytes_;
  prometheus::Counter& read_bytes_;
};

}  // namespace sis
