#include "server/metrics/cache_metrics.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "server/metrics/metric_families.h"

namespace sis {
namespace {

using enum prometheus::MetricType;

// With the label that tells it from others of its family and run, if there is one.
struct Sample {
  double value;
  std::vector<prometheus::ClientMetric::Label> labels = {};
};
using Samples = std::vector<Sample>;

struct RunFamily {
  const char* name;
  const char* help;
  prometheus::MetricType type;
  Samples (*samples)(const Run& run, const RunTotals& totals);
};

template <double RunTotals::*kTotal>
Samples Total(const Run&, const RunTotals& totals) {
  return {{totals.*kTotal}};
}

const RunFamily kRunFamilies[] = {
    {"sis_tokens_total", "Positions evaluated, once per draw, by decision.", Counter,
     [](const Run&, const RunTotals& totals) {
       return Samples{{totals.accepted, {{"decision", "accepted"}}},
                      {totals.rejected, {{"decision", "rejected"}}},
                      {totals.outside_top_k, {{"decision", "outside_top_k"}}},
                      {totals.missing, {{"decision", "missing"}}}};
     }},
    {"sis_missing_tokens_total", "Positions without a record, once per draw, by reason.", Counter,
     [](const Run&, const RunTotals& totals) {
       Samples samples;
       for (const MissingReason reason : kMissingReasons) {
         samples.push_back({totals.missing_by_reason[static_cast<int>(reason)],
                            {{"reason", std::string(Name(reason))}}});
       }
       return samples;
     }},
    {"sis_envelope_violations_total",
     "Positions whose ratio lies above the envelope of their own set.", Counter,
     Total<&RunTotals::envelope_violations>},
    {"sis_d_nats_total", "D: sum of |log w| over scored positions.", Counter, Total<&RunTotals::d>},
    {"sis_d_sis_nats_total", "D_SIS: sum of |log w| over scored positions not accepted.", Counter,
     Total<&RunTotals::d_sis>},
    {"sis_log_envelope_nats_sum", "Sum of the log-envelope over scored positions.", Gauge,
     Total<&RunTotals::log_envelope>},
    {"sis_residual_mass_total",
     "Sum over scored positions of the current policy's mass outside the set.", Counter,
     Total<&RunTotals::residual_mass>},
    {"sis_acceptance_probability_total", "Sum of a over scored positions.", Counter,
     Total<&RunTotals::acceptance_probability>},
    {"sis_expected_acceptance_total",
     "Sum over scored positions of (1 - residual mass) / envelope.", Counter,
     Total<&RunTotals::expected_acceptance>},
    {"sis_k3_nats_total",
     "Sum over scored positions of w - 1 - log w, an estimator of the KL divergence from the "
     "behaviour to the current policy.",
     Counter, Total<&RunTotals::k3>},
    {"sis_total_variation_total",
     "Sum over scored positions of the policies' total variation on the set, where asked for.",
     Counter, Total<&RunTotals::total_variation>},
    {"sis_ingest_positions_total", "Positions stored, re-sent ones not counted.", Counter,
     Total<&RunTotals::ingested_positions>},
    {"sis_ingest_bytes_total", "Bytes of arrays in accepted blocks, re-sent ones counted.", Counter,
     Total<&RunTotals::ingested_bytes>},
    {"sis_refused_entries_total", "Entries of Append that were refused, by status code.", Counter,
     [](const Run&, const RunTotals& totals) {
       Samples samples;
       for (const absl::StatusCode code :
            {absl::StatusCode::kInvalidArgument, absl::StatusCode::kAlreadyExists,
             absl::StatusCode::kFailedPrecondition, absl::StatusCode::kResourceExhausted,
             absl::StatusCode::kUnavailable, absl::StatusCode::kDataLoss}) {
         samples.push_back({totals.refused_entries_by_code[static_cast<int>(code)],
                            {{"code", absl::StatusCodeToString(code)}}});
       }
       return samples;
     }},
    {"sis_dropped_sequences_total", "Sequences that left the cache, by reason.", Counter,
     [](const Run&, const RunTotals& totals) {
       Samples samples;
       for (const MissingReason reason : kMissingReasons) {
         if (reason == MissingReason::kNeverArrived) continue;
         samples.push_back({totals.dropped_by_reason[static_cast<int>(reason)],
                            {{"reason", std::string(Name(reason))}}});
       }
       return samples;
     }},
    {"sis_evicted_unread_sequences_total",
     "Sequences evicted for good before anybody had read them.", Counter,
     Total<&RunTotals::evicted_unread>},
    {"sis_run_bytes", "Bytes charged to the run.", Gauge,
     [](const Run& run, const RunTotals&) {
       return Samples{{static_cast<double>(run.budget().used())}};
     }},
    {"sis_run_sequences", "Sequences held.", Gauge,
     [](const Run& run, const RunTotals&) {
       return Samples{{static_cast<double>(run.sequences())}};
     }},
    {"sis_run_policy_version", "The current policy version.", Gauge,
     [](const Run& run, const RunTotals&) {
       return Samples{{static_cast<double>(run.policy_version())}};
     }},
    {"sis_run_info", "1, with the run's labels.", Gauge,
     [](const Run& run, const RunTotals&) {
       return Samples{{1,
                       {{"algorithm", run.config().algorithm},
                        {"incarnation", std::to_string(run.incarnation())},
                        {"model", run.config().model},
                        {"task", run.config().task}}}};
     }},
};

}  // namespace

std::vector<prometheus::MetricFamily> CacheMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> families = {
      Family("sis_cache_bytes", "Bytes charged to the cache.", Gauge,
             static_cast<double>(registry_.budget().used())),
      Family("sis_cache_budget_bytes", "The most that sis_cache_bytes may be.", Gauge,
             static_cast<double>(registry_.budget().limit())),
      Family("sis_step_bytes", "Bytes of the totals of steps, besides sis_cache_bytes.", Gauge,
             static_cast<double>(registry_.steps_budget().used()))};
  std::vector<std::pair<std::shared_ptr<Run>, RunTotals>> runs;
  for (std::shared_ptr<Run>& run : registry_.List()) {
    const RunTotals totals = run->counters().totals();
    runs.emplace_back(std::move(run), totals);
  }
  if (runs.empty()) return families;
  for (const RunFamily& family : kRunFamilies) {
    families.push_back({family.name, family.help, family.type, {}});
    for (const auto& [run, totals] : runs) {
      for (Sample& sample : family.samples(*run, totals)) {
        sample.labels.push_back({"run", run->id()});
        std::ranges::sort(sample.labels, {}, &prometheus::ClientMetric::Label::name);
        families.back().metric.push_back(
            Metric(family.type, sample.value, std::move(sample.labels)));
      }
    }
  }
  return families;
}

}  // namespace sis
