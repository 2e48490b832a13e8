#include "server/metrics/metrics.h"

#include "absl/strings/ascii.h"

namespace sis {
namespace {

prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry,
                                                       const std::string& name,
                                                       const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry,
                                                   const std::string& name,
                                                   const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

// From a control call to a whole step.
const prometheus::Histogram::BucketBoundaries kRpcSecondsBuckets = {
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};

}  // namespace

std::string ReasonLabel(v1::MissingReason reason) {
  return absl::AsciiStrToLower(v1::MissingReason_Name(reason));
}

Metrics::Metrics(int64_t cache_budget_bytes)
    : registry_(std::make_shared<prometheus::Registry>()),
      tokens_(CounterFamily(*registry_, "sis_tokens_total",
                            "Positions evaluated, once per draw, by decision.")),
      missing_tokens_(CounterFamily(*registry_, "sis_missing_tokens_total",
                                    "Positions without a record, once per draw, by reason.")),
      envelope_violations_(
          CounterFamily(*registry_, "sis_envelope_violations_total",
                        "Positions whose ratio lies above the envelope of their own set.")),
      d_(CounterFamily(*registry_, "sis_d_nats_total", "D: sum of |log w| over scored positions.")),
      d_sis_(CounterFamily(*registry_, "sis_d_sis_nats_total",
                           "D_SIS: sum of |log w| over scored positions not accepted.")),
      log_envelope_(GaugeFamily(*registry_, "sis_log_envelope_nats_sum",
                                "Sum of the log-envelope over scored positions.")),
      residual_mass_(
          CounterFamily(*registry_, "sis_residual_mass_total",
                        "Sum over scored positions of the current policy's mass outside the set.")),
      acceptance_probability_(CounterFamily(*registry_, "sis_acceptance_probability_total",
                                            "Sum of a over scored positions.")),
      expected_acceptance_(
          CounterFamily(*registry_, "sis_expected_acceptance_total",
                        "Sum over scored positions of (1 - residual mass) / envelope.")),
      k3_(CounterFamily(*registry_, "sis_k3_nats_total",
                        "Sum over scored positions of w - 1 - log w, an estimator of the KL "
                        "divergence from the behaviour to the current policy.")),
      total_variation_(CounterFamily(
          *registry_, "sis_total_variation_total",
          "Sum over scored positions of the policies' total variation on the set, where asked "
          "for.")),
      ingest_positions_(CounterFamily(*registry_, "sis_ingest_positions_total",
                                      "Positions stored, re-sent ones not counted.")),
      ingest_bytes_(CounterFamily(*registry_, "sis_ingest_bytes_total",
                                  "Bytes of arrays in accepted blocks, re-sent ones counted.")),
      refused_entries_(CounterFamily(*registry_, "sis_refused_entries_total",
                                     "Entries of Append that were refused, by status code.")),
      dropped_sequences_(CounterFamily(*registry_, "sis_dropped_sequences_total",
                                       "Sequences that left the cache, by reason.")),
      run_bytes_(GaugeFamily(*registry_, "sis_run_bytes", "Bytes charged to the run.")),
      run_sequences_(GaugeFamily(*registry_, "sis_run_sequences", "Sequences held.")),
      run_policy_version_(
          GaugeFamily(*registry_, "sis_run_policy_version", "The current policy version.")),
      run_info_(GaugeFamily(*registry_, "sis_run_info", "1, with the run's labels.")),
      rpcs_(CounterFamily(*registry_, "sis_rpcs_total", "RPCs finished, by method and code.")),
      rpc_seconds_(prometheus::BuildHistogram()
                       .Name("sis_rpc_seconds")
                       .Help("Time from the start of an RPC to its end, by method.")
                       .Register(*registry_)),
      store_operations_(CounterFamily(*registry_, "sis_store_operations_total",
                                      "Calls of the store, by operation and result.")),
      store_seconds_(prometheus::BuildHistogram()
                         .Name("sis_store_seconds")
                         .Help("Time of a call of the store, by operation.")
                         .Register(*registry_)),
      store_written_bytes_(CounterFamily(*registry_, "sis_store_written_bytes_total",
                                         "Bytes of records given to the store.")
                               .Add({})),
      store_read_bytes_(CounterFamily(*registry_, "sis_store_read_bytes_total",
                                      "Bytes of records that came from the store.")
                            .Add({})),
      store_recovery_seconds_(GaugeFamily(*registry_, "sis_store_recovery_seconds",
                                          "Time from opening the store to being ready.")
                                  .Add({})),
      cache_bytes_(
          GaugeFamily(*registry_, "sis_cache_bytes", "Bytes charged to the cache.").Add({})),
      waiting_appends_(GaugeFamily(*registry_, "sis_waiting_appends",
                                   "Append streams that are not read until there is room.")
                           .Add({})),
      segments_(
          GaugeFamily(*registry_, "sis_segments", "Segments of shared memory leased.").Add({})),
      segment_bytes_(GaugeFamily(*registry_, "sis_segment_bytes",
                                 "Bytes of shared memory, until the last request that uses a "
                                 "segment has ended.")
                         .Add({})) {
  GaugeFamily(*registry_, "sis_cache_budget_bytes", "The most that sis_cache_bytes may be.")
      .Add({})
      .Set(static_cast<double>(cache_budget_bytes));
}

void Metrics::CountRpc(const std::string& method, absl::StatusCode code, absl::Duration duration) {
  rpcs_.Add({{"method", method}, {"code", absl::StatusCodeToString(code)}}).Increment();
  rpc_seconds_.Add({{"method", method}}, kRpcSecondsBuckets)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CountStoreOperation(const std::string& operation, absl::StatusCode code,
                                  absl::Duration duration) {
  store_operations_.Add({{"operation", operation}, {"result", absl::StatusCodeToString(code)}})
      .Increment();
  store_seconds_.Add({{"operation", operation}}, kRpcSecondsBuckets)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::AddStoreBytes(int64_t written, int64_t read) {
  store_written_bytes_.Increment(static_cast<double>(written));
  store_read_bytes_.Increment(static_cast<double>(read));
}

RunMetrics::RunMetrics(Metrics& metrics, const std::string& run_id)
    : metrics_(metrics),
      run_id_(run_id),
      accepted_(metrics.tokens_.Add({{"run", run_id}, {"decision", "accepted"}})),
      rejected_(metrics.tokens_.Add({{"run", run_id}, {"decision", "rejected"}})),
      outside_top_k_(metrics.tokens_.Add({{"run", run_id}, {"decision", "outside_top_k"}})),
      missing_(metrics.tokens_.Add({{"run", run_id}, {"decision", "missing"}})),
      envelope_violations_(metrics.envelope_violations_.Add({{"run", run_id}})),
      d_(metrics.d_.Add({{"run", run_id}})),
      d_sis_(metrics.d_sis_.Add({{"run", run_id}})),
      log_envelope_(metrics.log_envelope_.Add({{"run", run_id}})),
      residual_mass_(metrics.residual_mass_.Add({{"run", run_id}})),
      acceptance_probability_(metrics.acceptance_probability_.Add({{"run", run_id}})),
      expected_acceptance_(metrics.expected_acceptance_.Add({{"run", run_id}})),
      k3_(metrics.k3_.Add({{"run", run_id}})),
      total_variation_(metrics.total_variation_.Add({{"run", run_id}})),
      ingest_positions_(metrics.ingest_positions_.Add({{"run", run_id}})),
      ingest_bytes_(metrics.ingest_bytes_.Add({{"run", run_id}})),
      bytes_(metrics.run_bytes_.Add({{"run", run_id}})),
      sequences_(metrics.run_sequences_.Add({{"run", run_id}})),
      policy_version_(metrics.run_policy_version_.Add({{"run", run_id}})) {
  for (int reason = 1; reason < v1::MissingReason_ARRAYSIZE; ++reason) {
    if (!v1::MissingReason_IsValid(reason)) continue;
    const std::string label = ReasonLabel(static_cast<v1::MissingReason>(reason));
    missing_by_reason_[reason] = &metrics.missing_tokens_.Add({{"run", run_id}, {"reason", label}});
    if (reason != v1::NEVER_ARRIVED) {
      dropped_by_reason_[reason] =
          &metrics.dropped_sequences_.Add({{"run", run_id}, {"reason", label}});
    }
  }
  for (const absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kAlreadyExists,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kUnavailable, absl::StatusCode::kDataLoss}) {
    refused_by_code_[static_cast<int>(code)] =
        &metrics.refused_entries_.Add({{"run", run_id}, {"code", absl::StatusCodeToString(code)}});
  }
}

RunMetrics::~RunMetrics() {
  for (prometheus::Counter* counter : {&accepted_, &rejected_, &outside_top_k_, &missing_}) {
    metrics_.tokens_.Remove(counter);
  }
  for (prometheus::Counter* counter : missing_by_reason_) {
    if (counter != nullptr) metrics_.missing_tokens_.Remove(counter);
  }
  for (prometheus::Counter* counter : dropped_by_reason_) {
    if (counter != nullptr) metrics_.dropped_sequences_.Remove(counter);
  }
  for (prometheus::Counter* counter : refused_by_code_) {
    if (counter != nullptr) metrics_.refused_entries_.Remove(counter);
  }
  metrics_.envelope_violations_.Remove(&envelope_violations_);
  metrics_.d_.Remove(&d_);
  metrics_.d_sis_.Remove(&d_sis_);
  metrics_.log_envelope_.Remove(&log_envelope_);
  metrics_.residual_mass_.Remove(&residual_mass_);
  metrics_.acceptance_probability_.Remove(&acceptance_probability_);
  metrics_.expected_acceptance_.Remove(&expected_acceptance_);
  metrics_.k3_.Remove(&k3_);
  metrics_.total_variation_.Remove(&total_variation_);
  metrics_.ingest_positions_.Remove(&ingest_positions_);
  metrics_.ingest_bytes_.Remove(&ingest_bytes_);
  metrics_.run_bytes_.Remove(&bytes_);
  metrics_.run_sequences_.Remove(&sequences_);
  metrics_.run_policy_version_.Remove(&policy_version_);
  if (info_ != nullptr) metrics_.run_info_.Remove(info_);
}

void RunMetrics::Describe(uint64_t incarnation, const v1::RunConfig& config) {
  if (info_ != nullptr) metrics_.run_info_.Remove(info_);
  info_ = &metrics_.run_info_.Add({{"run", run_id_},
                                   {"incarnation", std::to_string(incarnation)},
                                   {"task", config.task()},
                                   {"algorithm", config.algorithm()},
                                   {"model", config.model()}});
  info_->Set(1);
}

void RunMetrics::AddEvaluated(const Sums& sums, std::span<const Missing> missing) {
  accepted_.Increment(static_cast<double>(sums.accepted));
  rejected_.Increment(static_cast<double>(sums.rejected));
  outside_top_k_.Increment(static_cast<double>(sums.outside_top_k));
  missing_.Increment(static_cast<double>(sums.missing));
  for (const Missing& range : missing) missing_by_reason_[range.reason]->Increment(range.count);
  envelope_violations_.Increment(static_cast<double>(sums.envelope_violations));
  d_.Increment(FromFixed(sums.d));
  d_sis_.Increment(FromFixed(sums.d_sis));
  log_envelope_.Increment(FromFixed(sums.log_envelope));
  residual_mass_.Increment(FromFixed(sums.residual_mass));
  acceptance_probability_.Increment(FromFixed(sums.acceptance_probability));
  expected_acceptance_.Increment(FromFixed(sums.expected_acceptance));
  k3_.Increment(FromFixed(sums.k3));
  total_variation_.Increment(FromFixed(sums.total_variation));
}

void RunMetrics::AddIngested(int64_t positions, int64_t bytes) {
  ingest_positions_.Increment(static_cast<double>(positions));
  ingest_bytes_.Increment(static_cast<double>(bytes));
}

void RunMetrics::AddRefusedEntry(absl::StatusCode code) {
  prometheus::Counter* counter = refused_by_code_[static_cast<int>(code)];
  if (counter != nullptr) counter->Increment();
}

void RunMetrics::AddDropped(v1::MissingReason reason) { dropped_by_reason_[reason]->Increment(); }

void RunMetrics::SetState(int64_t bytes, int64_t sequences, uint64_t policy_version) {
  bytes_.Set(static_cast<double>(bytes));
  sequences_.Set(static_cast<double>(sequences));
  policy_version_.Set(static_cast<double>(policy_version));
}

}  // namespace sis
