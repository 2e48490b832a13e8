// A worker: opens a run, records two generated tokens, and seals the sequence.
//
//     example HOST:PORT
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "client/cpp/client.h"

namespace {

namespace v1 = sis::v1;

constexpr uint32_t kVocabulary = 151'936;
constexpr int kTopK = 3;

absl::Status Record(const std::string& address) {
  const sis::Client client(address);
  v1::CreateRunRequest create;
  create.set_run_id("example");
  create.mutable_config()->set_seed(1);
  create.mutable_config()->set_vocabulary_size(kVocabulary);
  create.mutable_config()->set_top_k(kTopK);
  const auto run = client.CreateRun(create);
  if (!run.ok()) return run.status();

  // The engine's tokens, their log-probs, and the top-K sets: most probable first, padded with -1
  // and -inf. The second token is outside its set.
  const std::vector<int32_t> sampled_ids = {11, 7};
  const std::vector<float> sampled_log_probs = {-0.5F, -4.25F};
  const std::vector<int32_t> ids = {11, 42, 7, 9, 3, -1};
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::vector<float> log_probs = {-0.5F, -1.5F, -2.0F, -0.125F, -3.0F, kNone};

  v1::AppendHeader header;
  header.mutable_run()->set_run_id("example");
  header.mutable_run()->set_incarnation(run->incarnation());
  header.set_vocabulary_size(kVocabulary);
  header.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
  header.mutable_sampling()->set_temperature(1);
  const auto stream = client.OpenAppend(header);
  v1::SequenceRef sequence;
  sequence.set_id("response-0");
  const absl::Status added = stream->AddBlock(
      sequence, {sampled_ids, sampled_log_probs, ids, log_probs},
      {.slots = kTopK, .vocabulary_size = kVocabulary, .first_position = 0, .policy_version = 0});
  if (!added.ok()) return added;
  v1::Seal seal;
  seal.set_length(2);
  stream->AddSeal(sequence, seal);
  return stream->Flush();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example HOST:PORT\n");
    return 2;
  }
  const absl::Status status = Record(argv[1]);
  std::printf("%s\n", status.ok() ? "recorded 2 tokens of response-0" : status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
