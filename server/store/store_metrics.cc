#include "server/store/store_metrics.h"

namespace sis {
namespace {

// From a page in memory to a node that hangs.
const prometheus::Histogram::BucketBoundaries kSecondsBuckets = {
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};

}  // namespace

StoreMetrics::StoreMetrics(prometheus::Registry& registry)
    : operations_(prometheus::BuildCounter()
                      .Name("sis_store_operations_total")
                      .Help("Calls of the store, by operation and result.")
                      .Register(registry)),
      seconds_(prometheus::BuildHistogram()
                   .Name("sis_store_seconds")
                   .Help("Time of a call of the store, by operation.")
                   .Register(registry)),
      written_bytes_(prometheus::BuildCounter()
                         .Name("sis_store_written_bytes_total")
                         .Help("Bytes of records given to the store.")
                         .Register(registry)
                         .Add({})),
      read_bytes_(prometheus::BuildCounter()
                      .Name("sis_store_read_bytes_total")
                      .Help("Bytes of records that came from the store.")
                      .Register(registry)
                      .Add({})) {}

void StoreMetrics::CountOperation(const std::string& operation, absl::StatusCode code,
                                  absl::Duration duration) {
  operations_.Add({{"operation", operation}, {"result", absl::StatusCodeToString(code)}})
      .Increment();
  seconds_.Add({{"operation", operation}}, kSecondsBuckets)
      .Observe(absl::ToDoubleSeconds(duration));
}

void StoreMetrics::AddBytes(int64_t written, int64_t read) {
  written_bytes_.Increment(static_cast<double>(written));
  read_bytes_.Increment(static_cast<double>(read));
}

}  // namespace sis
