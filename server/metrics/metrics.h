// What Prometheus scrapes. docs/metrics.md says what each means.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/numerics/sums.h"
#include "server/metrics/missing.h"

namespace sis {

class RunMetrics;

// The families of one server. Thread-safe.
class Metrics {
 public:
  explicit Metrics(int64_t cache_budget_bytes);
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

  void CountRpc(const std::string& method, absl::StatusCode code, absl::Duration duration);
  void CountStoreOperation(const std::string& operation, absl::StatusCode code,
                           absl::Duration duration);
  void AddStoreBytes(int64_t written, int64_t read);
  void SetStoreRecoverySeconds(double seconds) { store_recovery_seconds_.Set(seconds); }
  void SetCacheBytes(int64_t bytes) { cache_bytes_.Set(static_cast<double>(bytes)); }
  void SetWaitingAppends(int64_t streams) { waiting_appends_.Set(static_cast<double>(streams)); }
  void SetSegments(int64_t segments, int64_t bytes) {
    segments_.Set(static_cast<double>(segments));
    segment_bytes_.Set(static_cast<double>(bytes));
  }

 private:
  friend class RunMetrics;

  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Counter>& tokens_;
  prometheus::Family<prometheus::Counter>& missing_tokens_;
  prometheus::Family<prometheus::Counter>& envelope_violations_;
  prometheus::Family<prometheus::Counter>& d_;
  prometheus::Family<prometheus::Counter>& d_sis_;
  prometheus::Family<prometheus::Gauge>& log_envelope_;
  prometheus::Family<prometheus::Counter>& residual_mass_;
  prometheus::Family<prometheus::Counter>& acceptance_probability_;
  prometheus::Family<prometheus::Counter>& expected_acceptance_;
  prometheus::Family<prometheus::Counter>& k3_;
  prometheus::Family<prometheus::Counter>& total_variation_;
  prometheus::Family<prometheus::Counter>& ingest_positions_;
  prometheus::Family<prometheus::Counter>& ingest_bytes_;
  prometheus::Family<prometheus::Counter>& refused_entries_;
  prometheus::Family<prometheus::Counter>& dropped_sequences_;
  prometheus::Family<prometheus::Gauge>& run_bytes_;
  prometheus::Family<prometheus::Gauge>& run_sequences_;
  prometheus::Family<prometheus::Gauge>& run_policy_version_;
  prometheus::Family<prometheus::Gauge>& run_info_;
  prometheus::Family<prometheus::Counter>& rpcs_;
  prometheus::Family<prometheus::Histogram>& rpc_seconds_;
  prometheus::Family<prometheus::Counter>& store_operations_;
  prometheus::Family<prometheus::Histogram>& store_seconds_;
  prometheus::Counter& store_written_bytes_;
  prometheus::Counter& store_read_bytes_;
  prometheus::Gauge& store_recovery_seconds_;
  prometheus::Gauge& cache_bytes_;
  prometheus::Gauge& waiting_appends_;
  prometheus::Gauge& segments_;
  prometheus::Gauge& segment_bytes_;
};

// The series of one run id, over all of its incarnations; they vanish with the object, which must
// not outlive the Metrics. Thread-safe, but for Describe.
class RunMetrics {
 public:
  RunMetrics(Metrics& metrics, const std::string& run_id);
  ~RunMetrics();
  RunMetrics(const RunMetrics&) = delete;
  RunMetrics& operator=(const RunMetrics&) = delete;

  // Shows the incarnation and its labels, instead of those before.
  void Describe(uint64_t incarnation, const v1::RunConfig& config);

  // Positions counted for the first time.
  void AddEvaluated(const Sums& sums, std::span<const Missing> missing);
  void AddIngested(int64_t positions, int64_t bytes);
  void AddRefusedEntry(absl::StatusCode code);
  void AddDropped(v1::MissingReason reason);
  void SetState(int64_t bytes, int64_t sequences, uint64_t policy_version);

 private:
  Metrics& metrics_;
  const std::string run_id_;
  prometheus::Counter& accepted_;
  prometheus::Counter& rejected_;
  prometheus::Counter& outside_top_k_;
  prometheus::Counter& missing_;
  std::array<prometheus::Counter*, v1::MissingReason_ARRAYSIZE> missing_by_reason_{};
  std::array<prometheus::Counter*, v1::MissingReason_ARRAYSIZE> dropped_by_reason_{};
  std::array<prometheus::Counter*, 17> refused_by_code_{};
  prometheus::Counter& envelope_violations_;
  prometheus::Counter& d_;
  prometheus::Counter& d_sis_;
  prometheus::Gauge& log_envelope_;
  prometheus::Counter& residual_mass_;
  prometheus::Counter& acceptance_probability_;
  prometheus::Counter& expected_acceptance_;
  prometheus::Counter& k3_;
  prometheus::Counter& total_variation_;
  prometheus::Counter& ingest_positions_;
  prometheus::Counter& ingest_bytes_;
  prometheus::Gauge& bytes_;
  prometheus::Gauge& sequences_;
  prometheus::Gauge& policy_version_;
  prometheus::Gauge* info_ = nullptr;
};

// "never_arrived" for NEVER_ARRIVED, and so on: the label values.
std::string ReasonLabel(v1::MissingReason reason);

}  // namespace sis
