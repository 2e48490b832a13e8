#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/decide/statistics.h"
#include "server/metrics/metric_families.h"
#include "server/observe/verdict.h"

namespace sis {
namespace {

using enum prometheus::MetricType;

using Labels = std::vector<prometheus::ClientMetric::Label>;

// A value with its labels, except that of the run.
struct Sample {
  double value;
  Labels labels = {};
};
using Samples = std::vector<Sample>;

// A run, or all runs without series of their own.
struct Shown {
  std::string label;
  RunTotals totals;
  double bytes = 0;
  double sequences = 0;
  std::shared_ptr<Run> run;  // null for all others
  std::vector<Finding> findings = {};
};

struct RunFamily {
  const char* name;
  const char* help;
  prometheus::MetricType type;
  Samples (*samples)(const Shown& shown);
};

template <double RunTotals::*kTotal>
Samples Total(const Shown& shown) {
  return {{shown.totals.*kTotal}};
}

// For `kBits` see Total::Of.
template <int64_t Sums::*kField, int kBits = 0>
Samples Sum(const Shown& shown) {
  return {{shown.totals.sums.Of(kField, kBits)}};
}

template <int64_t CorrectionSums::*kField, int kBits = 0>
Samples OfCorrections(const Shown& shown) {
  Samples samples;
  for (const auto& [name, totals] : shown.totals.corrections) {
    samples.push_back({totals.Of(kField, kBits), {{"correction", name}}});
  }
  return samples;
}

template <int64_t PrefixPointSums::*kField, int kBits = 0>
Samples OfPrefixes(const Shown& shown) {
  Samples samples;
  for (const auto& [top_k, totals] : shown.totals.prefix_curve) {
    samples.push_back({totals.Of(kField, kBits), {{"top_k", std::to_string(top_k)}}});
  }
  return samples;
}

Samples Tokens(const Shown& shown) {
  Samples samples;
  for (size_t i = 0; i < kAgeClasses.size(); ++i) {
    for (const auto& [decision, field] :
         {std::pair("accepted", &AgeSums::accepted), std::pair("rejected", &AgeSums::rejected),
          std::pair("outside_top_k", &AgeSums::outside_top_k)}) {
      samples.push_back({shown.totals.ages[i].Of(field),
                         {{"decision", decision}, {"age", std::string(kAgeClasses[i].label)}}});
    }
  }
  samples.push_back(
      {shown.totals.sums.Of(&Sums::missing), {{"decision", "missing"}, {"age", "unknown"}}});
  return samples;
}

template <int64_t AgeSums::*kField, int kBits>
Samples OfAges(const Shown& shown) {
  Samples samples;
  for (size_t i = 0; i < kAgeClasses.size(); ++i) {
    samples.push_back(
        {shown.totals.ages[i].Of(kField, kBits), {{"age", std::string(kAgeClasses[i].label)}}});
  }
  return samples;
}

Samples RatiosBeyond(const Shown& shown) {
  Samples samples;
  for (size_t i = 0; i < kRatioBounds.size(); ++i) {
    samples.push_back({static_cast<double>(shown.totals.ratios_beyond[i]),
                       {{"bound", absl::StrCat(kRatioBounds[i])}}});
  }
  return samples;
}

const RunFamily kRunFamilies[] = {
    {"sis_tokens_total",
     "Evaluated positions, once per draw, by decision and by age in policy versions.", Counter,
     Tokens},
    {"sis_missing_tokens_total", "Positions without a record, once per draw, by reason.", Counter,
     [](const Shown& shown) {
       Samples samples;
       for (const MissingReason reason : kMissingReasons) {
         samples.push_back(
             {static_cast<double>(shown.totals.missing_by_reason[static_cast<int>(reason)]),
              {{"reason", std::string(Name(reason))}}});
       }
       return samples;
     }},
    {"sis_envelope_violations_total",
     "Positions whose ratio exceeds the envelope of their own set.", Counter,
     Sum<&Sums::envelope_violations>},
    {"sis_deviation_nats_total", "D: sum of |log w| over scored positions, by age.", Counter,
     OfAges<&AgeSums::d, kFixedBits>},
    {"sis_modified_deviation_nats_total",
     "D_SIS: sum of |log w| over scored positions not accepted, by age.", Counter,
     OfAges<&AgeSums::d_sis, kFixedBits>},
    {"sis_modified_ratio_total", "Sum of the modified ratios of scored positions, by age.", Counter,
     OfAges<&AgeSums::weight, kCountedWeightBits>},
    {"sis_modified_ratio_squared_total",
     "Sum of the squares of the modified ratios of scored positions, by age.", Counter,
     OfAges<&AgeSums::weight_squared, kCountedWeightBits>},
    {"sis_expected_acceptance_total",
     "Sum over scored positions of (1 - residual mass) / envelope.", Counter,
     Sum<&Sums::expected_acceptance, kFixedBits>},
    {"sis_negative_log_envelope_nats_total",
     "Sum of -log M over scored positions where log M is negative.", Counter,
     Total<&RunTotals::negative_log_envelope>},
    {"sis_k3_nats_total",
     "Sum over scored positions of w - 1 - log w, an estimator of the KL divergence from the "
     "behaviour to the current policy.",
     Counter, Sum<&Sums::k3, kFixedBits>},
    {"sis_total_variation_total",
     "Sum over scored positions of the policies' total variation on the set, if requested.",
     Counter, Sum<&Sums::total_variation, kFixedBits>},
    {"sis_ratios_beyond_bound_total",
     "Scored positions whose ratio is below a bound < 1, or above a bound > 1.", Counter,
     RatiosBeyond},
    {"sis_correction_tokens_total", "Scored positions, by correction of the ratio.", Counter,
     OfCorrections<&CorrectionSums::positions>},
    {"sis_correction_touched_tokens_total", "Positions whose weight is not the ratio w.", Counter,
     OfCorrections<&CorrectionSums::touched>},
    {"sis_correction_zeroed_tokens_total", "Positions whose weight is 0.", Counter,
     OfCorrections<&CorrectionSums::zeroed>},
    {"sis_correction_weight_total", "Sum of the weights.", Counter,
     OfCorrections<&CorrectionSums::weight, kCountedWeightBits>},
    {"sis_correction_weight_squared_total", "Sum of the squares of the weights.", Counter,
     OfCorrections<&CorrectionSums::weight_squared, kCountedWeightBits>},
    {"sis_correction_abs_log_weight_nats_total", "Sum of |log weight| where it is not 0.", Counter,
     OfCorrections<&CorrectionSums::abs_log_weight, kFixedBits>},
    {"sis_correction_gradient_mass_total",
     "Sum of |weight * advantage|, if the request has advantages.", Counter,
     OfCorrections<&CorrectionSums::gradient_mass, kCountedWeightBits>},
    {"sis_prefix_tokens_total", "Scored positions of evaluations with a prefix curve.", Counter,
     OfPrefixes<&PrefixPointSums::positions>},
    {"sis_prefix_expected_acceptance_total",
     "sis_expected_acceptance_total if only the top_k most probable slots were used.", Counter,
     OfPrefixes<&PrefixPointSums::expected_acceptance, kFixedBits>},
    {"sis_prefix_residual_mass_total",
     "Sum of the residual mass if only the top_k most probable slots were used.", Counter,
     OfPrefixes<&PrefixPointSums::residual_mass, kFixedBits>},
    {"sis_uncounted_tokens_total",
     "Evaluated positions that their step's totals omit, because these are out of memory.", Counter,
     [](const Shown& shown) {
       const StepLedger::Uncounted& uncounted = shown.totals.uncounted;
       const auto sample = [](int64_t positions, const char* totals) {
         return Sample{static_cast<double>(positions), {{"totals", totals}}};
       };
       return Samples{sample(uncounted.positions, "all"),
                      sample(uncounted.prefix_curve, "prefix_curve"),
                      sample(uncounted.corrections, "corrections")};
     }},
    {"sis_ingest_positions_total", "Positions stored, re-sent ones not counted.", Counter,
     Total<&RunTotals::ingested_positions>},
    {"sis_ingest_slots_total",
     "Used slots of blocks with stored positions, after cuts at the run's mass.", Counter,
     Total<&RunTotals::ingested_slots>},
    {"sis_ingest_bytes_total", "Bytes of accepted blocks, re-sent ones counted.", Counter,
     Total<&RunTotals::ingested_bytes>},
    {"sis_refused_entries_total", "Entries of Append that were refused, by status code.", Counter,
     [](const Shown& shown) {
       Samples samples;
       for (const absl::StatusCode code :
            {absl::StatusCode::kInvalidArgument, absl::StatusCode::kAlreadyExists,
             absl::StatusCode::kFailedPrecondition, absl::StatusCode::kResourceExhausted,
             absl::StatusCode::kUnavailable, absl::StatusCode::kDataLoss}) {
         samples.push_back({shown.totals.refused_entries_by_code[static_cast<int>(code)],
                            {{"code", absl::StatusCodeToString(code)}}});
       }
       return samples;
     }},
    {"sis_dropped_sequences_total", "Sequences that left the cache, by reason.", Counter,
     [](const Shown& shown) {
       Samples samples;
       for (const MissingReason reason : kMissingReasons) {
         // These are reasons of positions, not of sequences.
         if (reason == MissingReason::kNeverArrived || IsReasonOfGap(reason)) continue;
         samples.push_back({shown.totals.dropped_by_reason[static_cast<int>(reason)],
                            {{"reason", std::string(Name(reason))}}});
       }
       return samples;
     }},
    {"sis_evicted_unread_sequences_total", "Sequences lost by eviction before anybody read them.",
     Counter, Total<&RunTotals::evicted_unread>},
    {"sis_run_bytes", "Bytes charged to the run.", Gauge,
     [](const Shown& shown) { return Samples{{shown.bytes}}; }},
    {"sis_run_sequences", "Sequences in memory.", Gauge,
     [](const Shown& shown) { return Samples{{shown.sequences}}; }},
    {"sis_run_policy_version", "The current policy version.", Gauge,
     [](const Shown& shown) {
       if (shown.run == nullptr) return Samples();
       return Samples{{static_cast<double>(shown.run->policy_version())}};
     }},
    {"sis_run_verdict", "0: healthy, 1: worth a look, 2: broken.", Gauge,
     [](const Shown& shown) {
       if (shown.run == nullptr) return Samples();
       return Samples{{static_cast<double>(VerdictOf(shown.findings))}};
     }},
    {"sis_run_findings", "1 for each rule that the run violates.", Gauge,
     [](const Shown& shown) {
       Samples samples;
       for (const Finding& finding : shown.findings) {
         samples.push_back({1, {{"rule", std::string(finding.rule().name)}}});
       }
       return samples;
     }},
    {"sis_run_info", "1, with the run's labels.", Gauge,
     [](const Shown& shown) {
       if (shown.run == nullptr) return Samples();
       return Samples{{1,
                       {{"algorithm", shown.run->config().algorithm},
                        {"incarnation", std::to_string(shown.run->incarnation())},
                        {"model", shown.run->config().model},
                        {"task", shown.run->config().task}}}};
     }},
};

struct RunHistogram {
  const char* name;
  const char* help;
  std::vector<double> bounds;
  std::span<const int64_t> (*counts)(const RunTotals& totals);
  double (*sum)(const RunTotals& totals);
};

template <auto kCounts>
std::span<const int64_t> Counts(const RunTotals& totals) {
  return totals.*kCounts;
}

const RunHistogram kRunHistograms[] = {
    {"sis_abs_log_ratio_nats", "|log w| of scored positions.", PowerBounds(kFirstNatsExponent),
     Counts<&RunTotals::abs_log_ratio_counts>,
     [](const auto& totals) { return totals.sums.Of(&Sums::d, kFixedBits); }},
    {"sis_log_envelope_nats",
     "The log-envelope, log M, of scored positions; negative values count as 0.",
     PowerBounds(kFirstNatsExponent), Counts<&RunTotals::log_envelope_counts>,
     [](const auto& totals) { return totals.positive_log_envelope; }},
    {"sis_residual_mass_ratio", "The current policy's mass outside the set, of scored positions.",
     PowerBounds(kFirstMassExponent), Counts<&RunTotals::residual_mass_counts>,
     [](const auto& totals) { return totals.sums.Of(&Sums::residual_mass, kFixedBits); }},
    {"sis_acceptance_probability_ratio",
     "The probability of acceptance, a, of scored positions; 0 outside the set.",
     AcceptanceBounds(), Counts<&RunTotals::acceptance_probability_counts>,
     [](const auto& totals) { return totals.sums.Of(&Sums::acceptance_probability, kFixedBits); }},
};

prometheus::ClientMetric ToMetric(const RunHistogram& histogram, const RunTotals& totals) {
  prometheus::ClientMetric metric;
  uint64_t count = 0;
  size_t bucket = 0;
  for (const int64_t positions : histogram.counts(totals)) {
    count += static_cast<uint64_t>(positions);
    const double bound = bucket < histogram.bounds.size() ? histogram.bounds[bucket]
                                                          : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({count, bound});
    ++bucket;
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = histogram.sum(totals);
  return metric;
}

std::vector<Shown> ShownRuns(const RunRegistry& registry) {
  std::vector<Shown> shown;
  std::optional<RunTotals> unnamed = registry.other_totals();
  Shown others{.label = kOtherRuns, .totals = unnamed.value_or(RunTotals()), .run = nullptr};
  for (const std::shared_ptr<Run>& run : registry.List()) {
    const auto bytes = static_cast<double>(run->budget().used());
    const auto sequences = static_cast<double>(run->sequences());
    if (run->counters().named()) {
      shown.push_back({run->id(), run->counters().totals(), bytes, sequences, run,
                       FindingsIn(NumbersOf(*run))});
    } else {
      others.bytes += bytes;
      others.sequences += sequences;
    }
  }
  if (unnamed.has_value()) shown.push_back(std::move(others));
  return shown;
}

void SortLabels(Labels& labels) {
  std::ranges::sort(labels, {}, &prometheus::ClientMetric::Label::name);
}

}  // namespace

MetricFamilies CacheMetrics(const RunRegistry& registry) {
  MetricFamilies families = {
      Family("sis_cache_bytes", "Bytes charged to the cache.", Gauge, registry.budget().used()),
      Family("sis_cache_budget_bytes", "Maximum of sis_cache_bytes.", Gauge,
             registry.budget().limit()),
      Family("sis_step_bytes", "Bytes of the totals of steps, not included in sis_cache_bytes.",
             Gauge, registry.steps_budget().used()),
      Family("sis_runs", "Number of runs.", Gauge, registry.size()),
      Family("sis_runs_limit", "Maximum of sis_runs.", Gauge, registry.max_runs()),
      Family("sis_owner_runs", "Largest number of runs of one owner.", Gauge,
             registry.runs_of_one_owner()),
      Family("sis_owner_runs_limit", "Maximum of sis_owner_runs.", Gauge,
             registry.max_runs_per_owner())};
  const std::vector<Shown> runs = ShownRuns(registry);
  for (const RunFamily& family : kRunFamilies) {
    prometheus::MetricFamily metrics{family.name, family.help, family.type, {}};
    for (const Shown& shown : runs) {
      for (Sample& sample : family.samples(shown)) {
        sample.labels.push_back({"run", shown.label});
        SortLabels(sample.labels);
        metrics.metric.push_back(Metric(family.type, sample.value, std::move(sample.labels)));
      }
    }
    if (!metrics.metric.empty()) families.push_back(std::move(metrics));
  }
  if (runs.empty()) return families;
  for (const RunHistogram& histogram : kRunHistograms) {
    families.push_back({histogram.name, histogram.help, Histogram, {}});
    for (const Shown& shown : runs) {
      prometheus::ClientMetric metric = ToMetric(histogram, shown.totals);
      metric.label.push_back({"run", shown.label});
      families.back().metric.push_back(std::move(metric));
    }
  }
  return families;
}

}  // namespace sis
