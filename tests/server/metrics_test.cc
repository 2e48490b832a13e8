#include "server/metrics/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <sstream>

#include "kernels/decide/scalar_backend.h"
#include "server/metrics/cache_metrics.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/evaluate_at_once.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

// The exposition as a map from series, as written there, to value.
std::map<std::string, double> Scrape(const prometheus::Collectable& metrics) {
  std::istringstream text(prometheus::TextSerializer().Serialize(metrics.Collect()));
  std::map<std::string, double> series;
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(series.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << "twice: " << line;
  }
  return series;
}

class MetricsTest : public testing::Test {
 protected:
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
  for (const char* decision : {"accepted", "rejected", "outside_top_k", "missing"}) {
    EXPECT_EQ(Value("sis_tokens_total{decision=\"" + std::string(decision) + "\",run=\"r\"}"), 0);
  }
  for (const char* reason : {"never_arrived", "evicted", "expired", "stale", "released"}) {
    EXPECT_EQ(Value("sis_missing_tokens_total{reason=\"" + std::string(reason) + "\",run=\"r\"}"),
              0);
  }
  for (const char* name :
       {"sis_envelope_violations_total", "sis_d_nats_total", "sis_d_sis_nats_total",
        "sis_log_envelope_nats_sum", "sis_residual_mass_total", "sis_acceptance_probability_total",
        "sis_expected_acceptance_total", "sis_k3_nats_total", "sis_total_variation_total",
        "sis_ingest_positions_total", "sis_ingest_bytes_total"}) {
    EXPECT_EQ(Value(name + std::string("{run=\"r\"}")), 0);
  }
  EXPECT_EQ(Value("sis_cache_budget_bytes"), 1 << 20);
  EXPECT_EQ(Value("sis_cache_bytes"), 0);
}

TEST_F(MetricsTest, SumsAreThoseOfTheStep) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  const Records records = generator_.NextRecords(100);
  const CurrentValues current = generator_.NextCurrent(records);
  AppendBlock(cache_, *run, records.Block("a"));
  AppendBlock(cache_, *run, records.Block("a"));  // re-sent
  v1::EvaluateRequest request;
  request.set_draw(1);
  request.set_total_variation(true);
  request.add_slices()->mutable_sequence()->set_id("a");
  request.mutable_slices(0)->set_length(100);
  *request.mutable_gathered() = current.Gathered(0, 100);
  const ScalarBackend backend;
  const auto response = EvaluateAtOnce(*run, backend, request);
  ASSERT_TRUE(response.ok());
  ASSERT_TRUE(EvaluateAtOnce(*run, backend, request).ok());  // a retry counts nothing

  const v1::Totals& totals = response->totals();
  EXPECT_EQ(Value("sis_tokens_total{decision=\"accepted\",run=\"r\"}"), totals.accepted());
  EXPECT_EQ(Value("sis_tokens_total{decision=\"rejected\",run=\"r\"}"), totals.rejected());
  EXPECT_EQ(Value("sis_tokens_total{decision=\"outside_top_k\",run=\"r\"}"),
            totals.outside_top_k());
  EXPECT_NEAR(Value("sis_d_nats_total{run=\"r\"}"), totals.d(), 1e-6);
  EXPECT_NEAR(Value("sis_d_sis_nats_total{run=\"r\"}"), totals.d_sis(), 1e-6);
  EXPECT_NEAR(Value("sis_log_envelope_nats_sum{run=\"r\"}"), totals.log_envelope(), 1e-6);
  EXPECT_NEAR(Value("sis_residual_mass_total{run=\"r\"}"), totals.residual_mass(), 1e-6);
  EXPECT_NEAR(Value("sis_acceptance_probability_total{run=\"r\"}"), totals.acceptance_probability(),
              1e-6);
  EXPECT_NEAR(Value("sis_expected_acceptance_total{run=\"r\"}"), totals.expected_acceptance(),
              1e-6);
  EXPECT_NEAR(Value("sis_k3_nats_total{run=\"r\"}"), totals.k3(), 1e-6);
  EXPECT_NEAR(Value("sis_total_variation_total{run=\"r\"}"), totals.total_variation(), 1e-6);
  EXPECT_GT(totals.d(), 0);
  EXPECT_GT(totals.k3(), 0);
  EXPECT_GT(totals.total_variation(), 0);
  EXPECT_EQ(Value("sis_ingest_positions_total{run=\"r\"}"), 100);
  EXPECT_EQ(Value("sis_ingest_bytes_total{run=\"r\"}"), 2 * 100 * 8 * (1 + 4));
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
  request.mutable_gathered()->set_log_probs(std::string(15 * 4 * 4, '\0'));
  request.mutable_gathered()->set_sampled_log_probs(std::string(15 * 4, '\0'));
  ASSERT_TRUE(EvaluateAtOnce(*run, ScalarBackend(), request).ok());
  ASSERT_TRUE(EvaluateAtOnce(*run, ScalarBackend(), request).ok());
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(Value("sis_missing_tokens_total{reason=\"" + reasons[i] + "\",run=\"r\"}"), i + 1);
    if (i == 0) continue;
    EXPECT_EQ(Value("sis_dropped_sequences_total{reason=\"" + reasons[i] + "\",run=\"r\"}"), 1);
  }
  EXPECT_EQ(Value("sis_evicted_unread_sequences_total{run=\"r\"}"), 0);
  EXPECT_EQ(Value("sis_tokens_total{decision=\"missing\",run=\"r\"}"), 15);
  EXPECT_EQ(Value("sis_tokens_total{decision=\"accepted\",run=\"r\"}"), 0);
}

TEST_F(MetricsTest, WhatIsEvictedUnreadIsCounted) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  for (const char* id : {"read", "unread", "leased", "released"}) {
    AppendBlock(cache_, *run, generator_.NextRecords(3).Block(id));
  }
  run->Find({"read", 0});
  run->Release({"released", 0});
  const std::vector<SequenceName> names = {{"leased", 0}};
  run->EndLease(*run->Lease(names, absl::Seconds(1)));
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

TEST(RpcMetricsTest, CountsByMethodAndCode) {
  Metrics metrics;
  metrics.CountRpc("Evaluate", absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics.CountRpc("Evaluate", absl::StatusCode::kOk, absl::Seconds(3));
  metrics.CountRpc("Evaluate", absl::StatusCode::kNotFound, absl::Microseconds(3));
  const auto series = Scrape(*metrics.registry());
  EXPECT_EQ(series.at("sis_rpcs_total{code=\"OK\",method=\"Evaluate\"}"), 2);
  EXPECT_EQ(series.at("sis_rpcs_total{code=\"NOT_FOUND\",method=\"Evaluate\"}"), 1);
  EXPECT_EQ(series.at("sis_rpc_seconds_count{method=\"Evaluate\"}"), 3);
  EXPECT_NEAR(series.at("sis_rpc_seconds_sum{method=\"Evaluate\"}"), 3.003003, 1e-9);
  EXPECT_EQ(series.at("sis_rpc_seconds_bucket{method=\"Evaluate\",le=\"0.005\"}"), 2);
}

}  // namespace
}  // namespace sis
