// A run of the study through a server: the server decides what the kernels decide, bit for bit.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "client/api/client.h"
#include "client/study/kernel_decisions.h"
#include "client/study/settings.h"
#include "client/study/training.h"
#include "server/testing/server_process.h"

namespace sis::study {
namespace {

constexpr uint64_t kSeed = 77;
const RunRef kRun = {"study"};

struct Case {
  std::string arm;
  LogProbEncoding encoding;
  v1::LogProbEncoding message_encoding;
  v1::Weight weight;
  v1::Algorithm algorithm;
  double mass = 0.0;
};

// Asks the server, and the kernels too.
class ServerDecisions {
 public:
  ServerDecisions(Client& client, const Case& test_case, const Arm& arm, uint32_t vocabulary)
      : client_(client),
        case_(test_case),
        vocabulary_(vocabulary),
        kernels_(arm, kSeed, test_case.encoding) {}

  void Record(Records records) {
    kernels_.Record(records);
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::RAW);
    sampling.set_temperature(1);
    const auto writer = client_.Append(kRun, sampling, vocabulary_);
    const auto top_k = static_cast<size_t>(records.top_k);
    for (size_t i = 0; i < records.lengths.size(); ++i) {
      const size_t length = records.lengths[i];
      const size_t row = i * records.length;
      const RecordView view = {std::span(records.sampled_ids).subspan(row, length),
                               std::span(records.sampled_log_probs).subspan(row, length),
                               std::span(records.ids).subspan(row * top_k, length * top_k),
                               std::span(records.log_probs).subspan(row * top_k, length * top_k)};
      const SequenceRef sequence = {records.SequenceId(i)};
      EXPECT_TRUE(writer->Block(sequence, 0, records.rollout, view).ok());
      EXPECT_TRUE(writer->Seal(sequence, static_cast<uint32_t>(length)).ok());
    }
    const auto refused = writer->Finish();
    ASSERT_TRUE(refused.ok()) << refused.status();
    ASSERT_TRUE(refused->empty()) << refused->front().status;
    records_ = std::move(records);
  }

  Decided Decide(const MiniBatch& batch) {
    std::vector<Slice> slices;
    for (const size_t response : batch.responses) {
      slices.push_back(
          {{records_.SequenceId(response)}, 0, static_cast<uint32_t>(records_.lengths[response])});
    }
    EvaluateOptions options;
    options.draw = batch.draw;
    options.outputs = {v1::DECISIONS, v1::LOG_RATIOS, v1::ACCEPTANCE_PROBABILITIES,
                       v1::COEFFICIENTS};
    options.weight = case_.weight;
    options.algorithm = case_.algorithm;
    options.advantages = batch.advantages;
    options.positive_advantages_only = case_.arm.ends_with("+positive");
    const auto evaluation = client_.Evaluate(
        kRun, slices, GatheredValues{batch.log_probs, batch.sampled_log_probs}, options);
    EXPECT_TRUE(evaluation.ok()) << evaluation.status();
    if (!evaluation.ok()) return kernels_.Decide(batch);
    const Decided decided = {evaluation->decisions, evaluation->acceptance_probabilities,
                             evaluation->log_ratios, evaluation->coefficients};
    EXPECT_EQ(decided, kernels_.Decide(batch)) << "draw " << batch.draw;
    decided_ += decided.decisions.size();
    return decided;
  }

  size_t decided() const { return decided_; }

 private:
  Client& client_;
  const Case& case_;
  const uint32_t vocabulary_;
  KernelDecisions kernels_;
  Records records_ = {};
  size_t decided_ = 0;
};

template <typename Set>
v1::Algorithm AlgorithmOf(const Set& set) {
  v1::Algorithm algorithm;
  set(algorithm);
  return algorithm;
}

TEST(Replay, AServerDecidesTheSame) {
  StartSettings start;
  start.digits = 1;
  start.base = 4;
  start.accuracy = 0.2;
  CellSettings cell;
  cell.prompts = 8;
  cell.updates = 4;
  cell.rollouts = 3;
  cell.top_k = 4;
  cell.held_out = 32;
  const std::vector<float> warm = WarmUp(start, kSeed);

  const Case cases[] = {
      {"grpo+sampled", LogProbEncoding::kFloat32, v1::FLOAT32, v1::SAMPLED,
       AlgorithmOf([](auto& algorithm) { algorithm.mutable_grpo(); })},
      {"dapo+expected", LogProbEncoding::kFloat16, v1::FLOAT16, v1::EXPECTED,
       AlgorithmOf([](auto& algorithm) { algorithm.mutable_dapo(); })},
      {"dppo_top_k+positive", LogProbEncoding::kFixed12, v1::FIXED12, v1::SAMPLED,
       AlgorithmOf([](auto& algorithm) { algorithm.mutable_dppo_top_k(); })},
      {"soft_acceptance+sampled", LogProbEncoding::kFixed12, v1::FIXED12, v1::SAMPLED,
       AlgorithmOf([](auto& algorithm) { algorithm.mutable_soft_acceptance(); })},
      {"damped_truncation+sampled", LogProbEncoding::kFloat16, v1::FLOAT16, v1::SAMPLED,
       AlgorithmOf([](auto& algorithm) { algorithm.mutable_damped_truncation(); })},
      {"soft_acceptance+expected", LogProbEncoding::kFixed12, v1::FIXED12, v1::EXPECTED,
       AlgorithmOf([](auto& algorithm) { algorithm.mutable_soft_acceptance(); }), 0.9},
  };
  ServerProcess server({"--listen=127.0.0.1:0", "--cache_bytes=67108864"});
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  for (const Case& test_case : cases) {
    SCOPED_TRACE(test_case.arm);
    v1::RunConfig config;
    config.set_seed(kSeed);
    config.set_vocabulary_size(static_cast<uint32_t>(start.MakeTask().vocabulary));
    config.set_top_k(static_cast<uint32_t>(cell.top_k));
    config.set_log_prob_encoding(test_case.message_encoding);
    // Of what the trainer has cut it cuts nothing more.
    config.set_mass(test_case.mass);
    ASSERT_TRUE((*client)->CreateRun(kRun.run_id, config).ok());
    cell.encoding = test_case.encoding;
    cell.mass = test_case.mass;

    ASSERT_TRUE(Set("arm=" + test_case.arm, start, cell).ok());
    ServerDecisions decisions(**client, test_case, cell.arm, config.vocabulary_size());
    Trainer trainer(start, cell, kSeed, warm);
    for (size_t r = 0; r < cell.rollouts; ++r) {
      decisions.Record(trainer.Generate());
      for (size_t u = 0; u < cell.updates; ++u) {
        const MiniBatch batch = trainer.Gather(u);
        trainer.Update(batch, decisions.Decide(batch).coefficients);
      }
    }
    EXPECT_GT(decisions.decided(), 200);
    std::vector<float> by_kernels = warm;
    Train(start, cell, kSeed, by_kernels);
    EXPECT_EQ(trainer.parameters(), by_kernels);
    EXPECT_NE(by_kernels, warm);
    EXPECT_TRUE((*client)->DeleteRun(kRun).ok());
  }
}

}  // namespace
}  // namespace sis::study
