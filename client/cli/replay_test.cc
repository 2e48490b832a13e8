// Replay against a server in this process, and against the definition in double precision
// (kernels/testing/reference.h).
#include "client/cli/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "kernels/testing/reference.h"
#include "server/main/server.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kVocabulary = 200;

// What an engine that gives `listed` tokens says of a distribution.
RecordedSet Sample(const std::vector<float>& log_probs, int listed, int sampled) {
  RecordedSet set{sampled, log_probs[sampled], {}};
  for (int id = 0; id < kVocabulary; ++id) set.top.push_back({id, log_probs[id]});
  std::sort(set.top.begin(), set.top.end(),
            [](const ListedToken& a, const ListedToken& b) { return a.log_prob > b.log_prob; });
  set.top.resize(listed);
  return set;
}

std::vector<float> LogSoftmax(std::vector<double> logits) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  std::vector<float> log_probs;
  for (const double logit : logits) {
    log_probs.push_back(static_cast<float>(logit - std::log(sum)));
  }
  return log_probs;
}

RecordedPair RandomRecordings(int positions) {
  std::mt19937 random(11);
  std::normal_distribution<double> logit(0, 2.5), noise(0, 0.3);
  RecordedPair pair;
  pair.vocabulary_size = kVocabulary;
  pair.behavior.top_k = 6;
  pair.current.top_k = 5;
  for (int i = 0; i < positions; ++i) {
    std::vector<double> logits(kVocabulary), noisy;
    for (double& value : logits) value = logit(random);
    for (const double value : logits) noisy.push_back(value + noise(random));
    std::vector<double> weights;
    for (const double value : logits) weights.push_back(std::exp(value));
    const int sampled = std::discrete_distribution<int>(weights.begin(), weights.end())(random);
    pair.behavior.positions.push_back(Sample(LogSoftmax(logits), 1 + i % 6, sampled));
    pair.current.positions.push_back(Sample(LogSoftmax(noisy), 5, sampled));
  }
  return pair;
}

class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.admin = "";
    options.cache_bytes = 64 << 20;
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    // Over the network: an in-process channel hands buffers over in ways that ThreadSanitizer can't
    // follow.
    auto client = Client::Connect(server_->grpc_address());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ReplayTest, AgreesWithTheDefinitionInDouble) {
  constexpr int kPositions = 2500;  // several blocks
  RecordedPair pair = RandomRecordings(kPositions);
  std::set<int> unscored;
  for (int i = 0; i < kPositions; i += 97) {
    // By turns a behaviour log-prob and a current one are not known.
    Recording& recording = i % 2 == 0 ? pair.behavior : pair.current;
    RecordedSet& set = recording.positions[i];
    set.sampled_log_prob = -kInfinity;
    std::erase_if(set.top, [&](const ListedToken& t) { return t.id == set.sampled_id; });
    unscored.insert(i);
  }
  pair.current.positions[50].top.clear();  // bounded by 0

  for (const int k : {6, 3, 1}) {
    double a = 0, d = 0, log_envelope = 0, residual_mass = 0;
    uint64_t outside = 0;
    for (int i = 0; i < kPositions; ++i) {
      if (unscored.contains(i)) continue;
      const RecordedSet& behavior = pair.behavior.positions[i];
      const RecordedSet& current = pair.current.positions[i];
      std::vector<float> behavior_values, bounds, exact;
      bool in_top_k = false;
      for (size_t slot = 0; slot < std::min<size_t>(k, behavior.top.size()); ++slot) {
        const int32_t id = behavior.top[slot].id;
        in_top_k |= id == behavior.sampled_id;
        behavior_values.push_back(behavior.top[slot].log_prob);
        float bound = current.top.empty() ? 0 : current.top.back().log_prob, value = -kInfinity;
        for (const ListedToken& token : current.top) {
          if (token.id == id) bound = value = token.log_prob;
        }
        if (id == current.sampled_id) bound = value = current.sampled_log_prob;
        bounds.push_back(bound);
        exact.push_back(value);
      }
      const ReferencePosition bounded = EvaluateReference(
          behavior_values, bounds, behavior.sampled_log_prob, current.sampled_log_prob, in_top_k);
      const ReferencePosition covered = EvaluateReference(
          behavior_values, exact, behavior.sampled_log_prob, current.sampled_log_prob, in_top_k);
      outside += !in_top_k;
      a += bounded.acceptance_probability;
      d += std::abs(bounded.log_ratio);
      log_envelope += bounded.log_envelope;
      residual_mass += std::max(0.0, covered.residual_mass);
    }
    const auto summary = Replay(*client_, pair, {.top_k = static_cast<uint32_t>(k), .seed = 3});
    ASSERT_TRUE(summary.ok()) << summary.status();
    const double scored = kPositions - static_cast<double>(unscored.size());
    EXPECT_EQ(summary->positions, kPositions);
    EXPECT_EQ(summary->unscored, unscored.size());
    EXPECT_EQ(summary->outside_top_k, outside);
    EXPECT_EQ(summary->accepted + summary->rejected + outside, scored);
    EXPECT_EQ(summary->accept_rate, static_cast<double>(summary->accepted) / scored);
    EXPECT_NEAR(summary->mean_acceptance_probability, a / scored, 1e-5 * a / scored);
    EXPECT_NEAR(summary->d, d, 1e-5 * d);
    EXPECT_LT(summary->d_sis, summary->d);
    EXPECT_NEAR(summary->mean_log_envelope, log_envelope / scored,
                1e-5 * std::abs(log_envelope) / scored);
    EXPECT_NEAR(summary->mean_residual_mass, residual_mass / scored, 1e-5 * residual_mass / scored);
    // 5 standard deviations at most of a sum of Bernoullis.
    EXPECT_NEAR(static_cast<double>(summary->accepted), a, 5 * std::sqrt(scored) / 2);
  }
}

TEST_F(ReplayTest, TheSeedDrawsTheDecisionsAgainAndAgain) {
  const RecordedPair pair = RandomRecordings(300);
  const auto first = Replay(*client_, pair, {.seed = 1});
  const auto again = Replay(*client_, pair, {.seed = 1});
  const auto other = Replay(*client_, pair, {.seed = 2});
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(first->d_sis, again->d_sis);
  EXPECT_NE(first->d_sis, other->d_sis);
  EXPECT_EQ(first->d, other->d);
}

TEST_F(ReplayTest, LeavesNoRunBehind) {
  ASSERT_TRUE(Replay(*client_, RandomRecordings(10), {}).ok());
  const auto runs = client_->ListRuns();
  ASSERT_TRUE(runs.ok());
  EXPECT_TRUE(runs->empty());
}

TEST_F(ReplayTest, KBeyondWhatIsListedIsAllThatIsListed) {
  const RecordedPair pair = RandomRecordings(40);
  const auto all = Replay(*client_, pair, {});
  const auto beyond = Replay(*client_, pair, {.top_k = 1000});
  ASSERT_TRUE(all.ok() && beyond.ok());
  EXPECT_EQ(all->mean_residual_mass, beyond->mean_residual_mass);
}

}  // namespace
}  // namespace sis
