#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/testing/scalar_backend.h"
#include "server/messages/step_message.h"
#include "server/metrics/metric_families.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/evaluate_at_once.h"
#include "server/testing/record_generator.h"
#include "server/testing/scrape.h"

namespace sis {
namespace {

class MetricsTest : public testing::Test {
 protected:
  static std::string Tokens(const std::string& decision, const std::string& age = "0") {
    return "sis_tokens_total{age=\"" + age + "\",decision=\"" + decision + "\",run=\"r\"}";
  }
  static std::string OfAge(const std::string& metric, const std::string& age) {
    return metric + "{age=\"" + age + "\",run=\"r\"}";
  }
  double Value(const std::string& series) {
    const auto scraped = Scrape(CacheMetrics(cache_.registry));
    const auto found = scraped.find(series);
    EXPECT_NE(found, scraped.end()) << series << " is not exposed";
    return found == scraped.end() ? NAN : found->second;
  }

  Cache cache_{1 << 20};
  RecordGenerator generator_{4, 1000, 41};
};

TEST_F(MetricsTest, ARunsSeriesStartAtZero) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  for (const char* age : {"0", "1", "2", "3", "4-7", "8-15", "16-31", "32+", "ahead"}) {
    for (const char* decision : {"accepted", "rejected", "outside_top_k"}) {
      EXPECT_EQ(Value(Tokens(decision, age)), 0);
    }
    for (const char* metric : {"sis_deviation_nats_total", "sis_modified_deviation_nats_total",
                               "sis_modified_ratio_total", "sis_modified_ratio_squared_total"}) {
      EXPECT_EQ(Value(OfAge(metric, age)), 0);
    }
  }
  EXPECT_EQ(Value(Tokens("missing", "unknown")), 0);
  for (const char* bound : {"0.5", "0.8", "1.2", "1.28", "2", "5"}) {
    EXPECT_EQ(
        Value("sis_ratios_beyond_bound_total{bound=\"" + std::string(bound) + "\",run=\"r\"}"), 0);
  }
  for (const char* correction : {"plain", "clipped", "applied"}) {
    EXPECT_EQ(Value("sis_correction_weight_squared_total{correction=\"" + std::string(correction) +
                    "\",run=\"r\"}"),
              0);
  }
  for (const char* reason :
       {"never_arrived", "evicted", "expired", "stale", "released", "store_down", "corrupt",
        "invalid_log_prob", "no_log_prob", "infinite_log_prob", "unknown_version"}) {
    EXPECT_EQ(Value("sis_missing_tokens_total{reason=\"" + std::string(reason) + "\",run=\"r\"}"),
              0);
  }
  for (const char* name :
       {"sis_envelope_violations_total", "sis_log_envelope_nats_sum",
        "sis_negative_log_envelope_nats_total", "sis_residual_mass_ratio_sum",
        "sis_acceptance_probability_ratio_sum", "sis_abs_log_ratio_nats_count",
        "sis_expected_acceptance_total", "sis_k3_nats_total", "sis_total_variation_total",
        "sis_ingest_positions_total", "sis_ingest_slots_total", "sis_ingest_bytes_total"}) {
    EXPECT_EQ(Value(name + std::string("{run=\"r\"}")), 0);
  }
  EXPECT_EQ(Value("sis_cache_budget_bytes"), 1 << 20);
  EXPECT_EQ(Value("sis_cache_bytes"), 0);
}

TEST_F(MetricsTest, SumsAreThoseOfTheStep) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  const Records records = generator_.NextRecords(100);
  const CurrentValues current = generator_.NextCurrent(records);
  const RecordedBlock older = records.Block("a", 0, 1, 0, 40);
  AppendBlock(cache_, *run, older);
  AppendBlock(cache_, *run, older);  // re-sent
  const RecordedBlock newer = records.Block("a", 40, 3, 40, 60);
  AppendBlock(cache_, *run, newer);
  ASSERT_TRUE(run->AdvanceVersion(3).ok());
  v1::EvaluateRequest request;
  request.set_draw(1);
  request.set_total_variation(true);
  request.add_prefix_curve(2);
  request.add_prefix_curve(4);
  v1::ObservedCorrection& tis = *request.add_observe();
  tis.set_name("tis");
  tis.mutable_algorithm()->mutable_tis()->set_truncation(1.0f);
  request.add_slices()->mutable_sequence()->set_id("a");
  request.mutable_slices(0)->set_length(100);
  *request.mutable_gathered() = current.Gathered(0, 100);
  const ScalarBackend backend{};
  const auto response = EvaluateAtOnce(*run, backend, request);
  ASSERT_TRUE(response.ok());
  ASSERT_TRUE(EvaluateAtOnce(*run, backend, request).ok());  // a retry counts nothing

  const v1::Totals& totals = response->totals();
  const v1::GetStepResponse step = ToMessage(*run->steps().Find(1));
  ASSERT_EQ(step.ages_size(), 2);
  for (const auto& [age, sums] : {std::pair("0", step.ages(0)), {"2", step.ages(1)}}) {
    EXPECT_EQ(Value(Tokens("accepted", age)), sums.accepted());
    EXPECT_EQ(Value(Tokens("rejected", age)), sums.rejected());
    EXPECT_EQ(Value(Tokens("outside_top_k", age)), sums.outside_top_k());
    EXPECT_NEAR(Value(OfAge("sis_deviation_nats_total", age)), sums.d(), 1e-6);
    EXPECT_NEAR(Value(OfAge("sis_modified_deviation_nats_total", age)), sums.d_sis(), 1e-6);
    EXPECT_NEAR(Value(OfAge("sis_modified_ratio_total", age)), sums.weight(), 1e-6);
    EXPECT_NEAR(Value(OfAge("sis_modified_ratio_squared_total", age)), sums.weight_squared(), 1e-6);
  }
  const double negative = Value("sis_negative_log_envelope_nats_total{run=\"r\"}");
  EXPECT_NEAR(Value("sis_log_envelope_nats_sum{run=\"r\"}") - negative, totals.log_envelope(),
              1e-6);
  EXPECT_NEAR(Value("sis_residual_mass_ratio_sum{run=\"r\"}"), totals.residual_mass(), 1e-6);
  EXPECT_NEAR(Value("sis_acceptance_probability_ratio_sum{run=\"r\"}"),
              totals.acceptance_probability(), 1e-6);
  EXPECT_NEAR(Value("sis_expected_acceptance_total{run=\"r\"}"), totals.expected_acceptance(),
              1e-6);
  EXPECT_NEAR(Value("sis_k3_nats_total{run=\"r\"}"), totals.k3(), 1e-6);
  EXPECT_NEAR(Value("sis_total_variation_total{run=\"r\"}"), totals.total_variation(), 1e-6);
  EXPECT_GT(totals.d(), 0);
  EXPECT_GT(totals.k3(), 0);
  EXPECT_GT(totals.total_variation(), 0);
  for (const char* histogram : {"sis_abs_log_ratio_nats", "sis_log_envelope_nats",
                                "sis_residual_mass_ratio", "sis_acceptance_probability_ratio"}) {
    const double scored = Value(histogram + std::string("_count{run=\"r\"}"));
    EXPECT_EQ(scored, totals.accepted() + totals.rejected() + totals.outside_top_k());
    EXPECT_EQ(Value(histogram + std::string("_bucket{run=\"r\",le=\"+Inf\"}")), scored);
  }
  EXPECT_NEAR(Value("sis_abs_log_ratio_nats_sum{run=\"r\"}"), totals.d(), 1e-6);
  EXPECT_NEAR(Value("sis_correction_abs_log_weight_nats_total{correction=\"applied\",run=\"r\"}"),
              totals.d_sis(), 1e-6);
  for (const char* family : {"tokens", "weight", "weight_squared"}) {
    const std::string name = "sis_correction_" + std::string(family) + "_total{correction=";
    EXPECT_GT(Value(name + "\"tis\",run=\"r\"}"), 0);
    EXPECT_LT(Value(name + "\"tis\",run=\"r\"}"), Value(name + "\"plain\",run=\"r\"}") + 1e-9);
  }
  EXPECT_EQ(step.totals().SerializeAsString(), totals.SerializeAsString());
  ASSERT_EQ(step.prefix_curve_size(), 2);
  for (const v1::PrefixPoint& point : step.prefix_curve()) {
    const std::string labels = absl::StrCat("{run=\"r\",top_k=\"", point.top_k(), "\"}");
    EXPECT_EQ(Value("sis_prefix_tokens_total" + labels), point.positions());
    EXPECT_NEAR(Value("sis_prefix_residual_mass_total" + labels), point.residual_mass(), 1e-6);
    EXPECT_NEAR(Value("sis_prefix_expected_acceptance_total" + labels), point.expected_acceptance(),
                1e-6);
  }
  EXPECT_EQ(step.prefix_curve(1).positions(),
            Value("sis_correction_tokens_total{correction=\"plain\",run=\"r\"}"));
  EXPECT_EQ(Value("sis_ingest_positions_total{run=\"r\"}"), 100);
  EXPECT_EQ(Value("sis_ingest_slots_total{run=\"r\"}"), 400 - std::ranges::count(records.ids, -1));
  EXPECT_EQ(Value("sis_ingest_bytes_total{run=\"r\"}"),
            2 * EntryOf(*run, older).block().size() + EntryOf(*run, newer).block().size());
}

TEST_F(MetricsTest, MissingTokensAreCountedByReason) {
  v1::RunConfig config = SmallConfig();
  config.set_time_to_live_seconds(10);
  config.set_max_staleness(0);
  const auto run = cache_.CreateRun("r", config);
  for (const char* id : {"expired", "evicted", "released", "stale"}) {
    AppendBlock(cache_, *run,
                generator_.NextRecords(3).Block(id, id == std::string("stale") ? 0 : 9));
  }
  ASSERT_EQ(*run->AdvanceVersion(1), 1);
  run->Release({"released", 0});
  cache_.clock.Advance(absl::Seconds(5));
  run->Find({"evicted", 0});
  cache_.clock.Advance(absl::Seconds(6));
  run->DropExpired();
  ASSERT_TRUE(run->EvictOldest());
  v1::EvaluateRequest request;
  uint32_t length = 0;
  const std::vector<std::string> reasons = {"never_arrived", "evicted", "expired", "stale",
                                            "released"};
  for (const std::string& reason : reasons) {
    request.add_slices()->mutable_sequence()->set_id(reason);
    request.mutable_slices()->rbegin()->set_length(++length);
  }
  request.mutable_gathered()->set_counts(std::string(15, '\0'));
  request.mutable_gathered()->set_sampled_log_probs(std::string(15 * 4, '\0'));
  ASSERT_TRUE(EvaluateAtOnce(*run, ScalarBackend(), request).ok());
  ASSERT_TRUE(EvaluateAtOnce(*run, ScalarBackend(), request).ok());
  const v1::GetStepResponse step = ToMessage(*run->steps().Find(0));
  ASSERT_EQ(step.missing_size(), 5);
  EXPECT_EQ(step.totals().missing(), 15);
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(Value("sis_missing_tokens_total{reason=\"" + reasons[i] + "\",run=\"r\"}"), i + 1);
    EXPECT_EQ(step.missing(static_cast<int>(i)).reason(), i + 1);
    EXPECT_EQ(step.missing(static_cast<int>(i)).positions(), i + 1);
    if (i == 0) continue;
    EXPECT_EQ(Value("sis_dropped_sequences_total{reason=\"" + reasons[i] + "\",run=\"r\"}"), 1);
  }
  EXPECT_EQ(Value("sis_evicted_unread_sequences_total{run=\"r\"}"), 0);
  EXPECT_EQ(Value(Tokens("missing", "unknown")), 15);
  EXPECT_EQ(Value(Tokens("accepted")), 0);
}

TEST_F(MetricsTest, UnreadEvictionsAreCounted) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  for (const char* id : {"read", "unread", "kept", "released"}) {
    AppendBlock(cache_, *run, generator_.NextRecords(3).Block(id));
  }
  run->Find({"read", 0});
  run->Release({"released", 0});
  const std::vector<SequenceName> names = {{"kept", 0}};
  run->Keep(names, absl::Seconds(1));
  cache_.clock.Advance(absl::Seconds(1));
  run->DropExpired();
  while (run->EvictOldest()) continue;
  EXPECT_EQ(Value("sis_dropped_sequences_total{reason=\"evicted\",run=\"r\"}"), 3);
  EXPECT_EQ(Value("sis_evicted_unread_sequences_total{run=\"r\"}"), 1);
}

TEST_F(MetricsTest, RefusedEntriesAreCountedByCode) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  AppendBlock(cache_, *run, generator_.NextRecords(1).Block("a"));
  AppendBlock(cache_, *run, generator_.NextRecords(1).Block("a"));
  AppendBlock(cache_, *run, generator_.NextRecords(1).Block(""));
  AppendBlock(cache_, *run, generator_.NextRecords(64 * 1500).Block("large"));
  run->Release({"a", 0});
  AppendBlock(cache_, *run, generator_.NextRecords(1).Block("a"));
  for (const char* code :
       {"ALREADY_EXISTS", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"}) {
    EXPECT_EQ(Value("sis_refused_entries_total{code=\"" + std::string(code) + "\",run=\"r\"}"), 1);
  }
}

TEST_F(MetricsTest, GaugesFollowTheState) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  AppendBlock(cache_, *run, generator_.NextRecords(100).Block("a"));
  AppendBlock(cache_, *run, generator_.NextRecords(100).Block("b"));
  ASSERT_TRUE(run->AdvanceVersion(12).ok());
  const auto bytes = static_cast<double>(cache_.registry.budget().used());
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(Value("sis_run_bytes{run=\"r\"}"), bytes);
  EXPECT_EQ(Value("sis_cache_bytes"), bytes);
  EXPECT_EQ(Value("sis_run_sequences{run=\"r\"}"), 2);
  EXPECT_EQ(Value("sis_run_policy_version{run=\"r\"}"), 12);
}

TEST_F(MetricsTest, CountersContinueOverIncarnations) {
  v1::RunConfig config = SmallConfig();
  config.set_task("addition");
  auto run = cache_.CreateRun("r", config);
  AppendBlock(cache_, *run, generator_.NextRecords(10).Block("a"));
  const std::string info =
      "sis_run_info{algorithm=\"\",incarnation=\"1\",model=\"\",run=\"r\",task=\"addition\"}";
  EXPECT_EQ(Value(info), 1);
  config.set_task("other");
  run = cache_.CreateRun("r", config, 2);
  EXPECT_FALSE(Scrape(CacheMetrics(cache_.registry)).contains(info));
  EXPECT_EQ(
      Value("sis_run_info{algorithm=\"\",incarnation=\"2\",model=\"\",run=\"r\",task=\"other\"}"),
      1);
  AppendBlock(cache_, *run, generator_.NextRecords(10).Block("a"));
  EXPECT_EQ(Value("sis_ingest_positions_total{run=\"r\"}"), 20);
}

// A few runs have series of their own until they go; the others share theirs, which never fall.
TEST(OtherRunsTest, RunsBeyondTheLimitShareTheirSeries) {
  Limits limits;
  limits.metric_runs = 1;
  Cache cache(1 << 20, limits);
  RecordGenerator generator{4, 1000, 42};
  const auto ingested = [&](const std::string& run) -> std::optional<double> {
    const auto series = Scrape(CacheMetrics(cache.registry));
    const auto found = series.find("sis_ingest_positions_total{run=\"" + run + "\"}");
    if (found == series.end()) return std::nullopt;
    return found->second;
  };
  const auto create = [&](const std::string& id, uint32_t positions) {
    const auto run = cache.CreateRun(id, SmallConfig());
    AppendBlock(cache, *run, generator.NextRecords(positions).Block("a"));
  };
  create("other", 1);
  EXPECT_EQ(ingested("other"), 1) << "an id that would be taken for all of them";
  create("a", 2);
  EXPECT_EQ(ingested("a"), 2);
  create("b", 3);
  EXPECT_EQ(ingested("b"), 3) << "the newest has series of its own";
  EXPECT_EQ(ingested("a"), std::nullopt);
  EXPECT_EQ(ingested("other"), 1) << "what is counted already stays where it was";
  AppendBlock(cache, **cache.registry.Find("a"), generator.NextRecords(5).Block("x"));
  EXPECT_EQ(ingested("other"), 6);
  ASSERT_TRUE(cache.registry.Delete("a", 1));
  EXPECT_EQ(ingested("other"), 6) << "a counter does not fall";
  ASSERT_TRUE(cache.registry.Delete("b", 1));
  EXPECT_EQ(ingested("b"), std::nullopt) << "a run's series go with it";
}

TEST(OtherRunsTest, SaysHowManyRunsThereAreAndMayBe) {
  Limits limits;
  limits.max_runs = 7;
  limits.max_runs_per_owner = 3;
  Cache cache(1 << 20, limits);
  cache.CreateRun("nobodys", SmallConfig());
  EXPECT_EQ(Scrape(CacheMetrics(cache.registry)).at("sis_owner_runs"), 0);
  const auto create = [&](const std::string& owner, const std::string& id) {
    const Caller caller{.identity = owner, .uses_all_runs = false};
    EXPECT_TRUE(cache.runs.Create(CreateRequest(id, SmallConfig()), caller).ok());
  };
  create("alice", "a");
  create("bob", "b");
  create("alice", "c");
  const auto series = Scrape(CacheMetrics(cache.registry));
  EXPECT_EQ(series.at("sis_runs"), 4);
  EXPECT_EQ(series.at("sis_runs_limit"), 7);
  EXPECT_EQ(series.at("sis_owner_runs"), 2);
  EXPECT_EQ(series.at("sis_owner_runs_limit"), 3);
}

TEST(ProcessMetricsTest, AreThoseOfTheProcess) {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : ProcessMetrics()) {
    values[family.name] = family.type == prometheus::MetricType::Counter
                              ? family.metric[0].counter.value
                              : family.metric[0].gauge.value;
  }
  EXPECT_EQ(values.size(), 6);
  EXPECT_GT(values["process_resident_memory_bytes"], 1 << 20);
  EXPECT_GT(values["process_virtual_memory_bytes"], values["process_resident_memory_bytes"]);
  EXPECT_GE(values["process_open_fds"], 3);
  EXPECT_GE(values["process_max_fds"], values["process_open_fds"]);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_GT(values["process_start_time_seconds"], now - 3600);
  EXPECT_LT(values["process_start_time_seconds"], now + 2);
}

}  // namespace
}  // namespace sis
