// EvaluateStream gives what Evaluate gives, however a batch is cut; plain protobuf clients can use
// both, and so does the C++ client.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <future>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "server/record_generator.h"
#include "tests/integration/live_server.h"

namespace sis {
namespace {

constexpr int kSlots = 6;
constexpr int kVocabulary = 1000;

struct NamedSequence {
  std::string id;
  Records records;
  CurrentValues current;
};

// A server with runs of the same seed and records: the same draw decides the same in each, and each
// counts for itself.
class EvaluateStreamTest : public testing::Test {
 protected:
  EvaluateStreamTest() {
    RecordGenerator generator(kSlots, kVocabulary, 5);
    for (const uint32_t length : {100, 1, 333, 64, 7, 250, 128}) {
      Records records = generator.NextRecords(length);
      CurrentValues current = generator.NextCurrent(records);
      sequences_.push_back(
          {absl::StrCat("s", sequences_.size()), std::move(records), std::move(current)});
    }
  }

  // The last sequence is not recorded.
  void MakeRun(const std::string& run) {
    v1::CreateRunRequest create = LiveServer::RunRequest(run, kSlots, kVocabulary);
    live_.CreateRun(create);
    std::vector<v1::AppendRequest> requests{LiveServer::Header(run, kVocabulary)};
    v1::AppendBatch& batch = *requests.emplace_back().mutable_batch();
    for (const NamedSequence& sequence : std::span(sequences_).first(sequences_.size() - 1)) {
      *batch.add_entries()->mutable_block() = sequence.records.Block(sequence.id);
    }
    const LiveServer::Appended appended = live_.Append(requests);
    ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
    for (const v1::Ack& ack : appended.acks) ASSERT_EQ(ack.code(), 0) << ack.message();
  }

  static v1::EvaluateRequest Options(const std::string& run) {
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id(run);
    request.set_draw(3);
    request.add_outputs(v1::ACCEPT_BITS);
    request.add_outputs(v1::DECISIONS);
    request.add_outputs(v1::ACCEPTANCE_PROBABILITIES);
    return request;
  }

  // Adds positions [first, first + count) of a sequence.
  static void Add(const NamedSequence& sequence, uint32_t first, uint32_t count,
                  v1::EvaluateRequest& request) {
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id(sequence.id);
    slice.set_first_position(first);
    slice.set_length(count);
    const v1::Gathered part = sequence.current.Gathered(first, count);
    request.mutable_gathered()->mutable_log_probs()->append(part.log_probs());
    request.mutable_gathered()->mutable_sampled_log_probs()->append(part.sampled_log_probs());
  }

  v1::EvaluateRequest Whole(const std::string& run) {
    v1::EvaluateRequest request = Options(run);
    for (const NamedSequence& sequence : sequences_) {
      Add(sequence, 0, sequence.records.size(), request);
    }
    return request;
  }

  // Over one stream, all sent before the answers are looked at: by a plain protobuf client.
  std::vector<v1::EvaluateResponse> Stream(const std::vector<v1::EvaluateRequest>& requests,
                                           grpc::Status& status) {
    grpc::ClientContext context;
    const auto stream = live_.stub().EvaluateStream(&context);
    std::thread writer([&] {
      for (const v1::EvaluateRequest& request : requests) {
        if (!stream->Write(request)) return;
      }
      stream->WritesDone();
    });
    std::vector<v1::EvaluateResponse> responses;
    v1::EvaluateResponse response;
    while (stream->Read(&response)) responses.push_back(response);
    writer.join();
    status = stream->Finish();
    return responses;
  }

  LiveServer live_;
  std::vector<NamedSequence> sequences_;
};

TEST_F(EvaluateStreamTest, IsEvaluateBitByBitHoweverTheBatchIsCut) {
  MakeRun("unary");
  v1::EvaluateResponse whole;
  ASSERT_TRUE(live_.Evaluate(Whole("unary"), whole).ok());
  ASSERT_GT(whole.totals().accepted(), 0);
  ASSERT_GT(whole.totals().missing(), 0);
  for (const uint32_t longest : {1000, 100, 37, 5}) {
    const std::string run = absl::StrCat("stream", longest);
    MakeRun(run);
    std::vector<v1::EvaluateRequest> requests;
    for (const NamedSequence& sequence : sequences_) {
      const uint32_t length = sequence.records.size();
      for (uint32_t first = 0; first < length; first += longest) {
        // Two slices a request, now and then.
        if (requests.empty() || requests.size() % 3 == 0 || requests.back().slices_size() == 2) {
          requests.push_back(Options(run));
        }
        Add(sequence, first, std::min(longest, length - first), requests.back());
      }
    }
    grpc::Status status;
    const std::vector<v1::EvaluateResponse> responses = Stream(requests, status);
    EXPECT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(responses.size(), requests.size());
    std::string decisions;
    std::string probabilities;
    uint64_t counted = 0;
    uint64_t missing = 0;
    for (const v1::EvaluateResponse& response : responses) {
      decisions += response.decisions();
      probabilities += response.acceptance_probabilities();
      counted += response.newly_counted();
      for (const v1::MissingRange& range : response.missing()) missing += range.length();
    }
    EXPECT_EQ(decisions, whole.decisions());
    EXPECT_EQ(probabilities, whole.acceptance_probabilities());
    EXPECT_EQ(counted, whole.newly_counted());
    EXPECT_EQ(missing, whole.totals().missing());
  }
}

TEST_F(EvaluateStreamTest, ARefusedRequestEndsTheStreamAfterTheAnswersBeforeIt) {
  MakeRun("run");
  v1::EvaluateRequest good = Options("run");
  Add(sequences_[0], 0, 10, good);
  v1::EvaluateRequest bad = good;
  bad.mutable_gathered()->mutable_log_probs()->pop_back();
  for (const size_t before : {0, 1, 5}) {
    std::vector<v1::EvaluateRequest> requests(before, good);
    requests.push_back(bad);
    requests.resize(before + 6, good);
    grpc::Status status;
    EXPECT_EQ(Stream(requests, status).size(), before);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("gathered.log_probs"), std::string::npos);
  }
}

TEST_F(EvaluateStreamTest, AnEmptyStreamIsNoError) {
  grpc::Status status;
  EXPECT_TRUE(Stream({}, status).empty());
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(EvaluateStreamTest, CancelledStreamsLeaveNothingBehindThatWorks) {
  MakeRun("run");
  for (int round = 0; round < 20; ++round) {
    grpc::ClientContext context;
    const auto stream = live_.stub().EvaluateStream(&context);
    for (int i = 0; i < round % 5; ++i) {
      if (!stream->Write(Whole("run"))) break;
    }
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  v1::EvaluateResponse whole;
  EXPECT_TRUE(live_.Evaluate(Whole("run"), whole).ok());
}

TEST_F(EvaluateStreamTest, AStreamLeftOpenEndsAtItsDeadline) {
  MakeRun("run");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const auto stream = live_.stub().EvaluateStream(&context);
  v1::EvaluateResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(live_.Evaluate(Whole("run"), response).ok());
}

TEST_F(EvaluateStreamTest, BytesThatAreNoRequestAreRefused) {
  grpc::GenericStub stub(
      grpc::CreateChannel(live_.server().grpc_address(), grpc::InsecureChannelCredentials()));
  const grpc::Slice slice(std::string("\x32\x7f not a Gathered"));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/sis.v1.RatioService/Evaluate", {}, &request, &response,
                 [&](grpc::Status status) { ended.set_value(std::move(status)); });
  const grpc::Status status = ended.get_future().get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "not a sis.v1.EvaluateRequest in protobuf");
}

// --- The C++ client
// -------------------------------------------------------------------------------

class CppClientTest : public EvaluateStreamTest {
 protected:
  // All sequences, as arrays.
  struct Arrays {
    std::vector<Slice> slices;
    std::vector<float> log_probs, sampled, envelopes, masses;
  };
  Arrays AllArrays() const {
    Arrays arrays;
    for (const NamedSequence& sequence : sequences_) {
      const uint32_t length = sequence.records.size();
      arrays.slices.push_back({{sequence.id}, 0, length});
      const CurrentValues& current = sequence.current;
      arrays.log_probs.insert(arrays.log_probs.end(), current.log_probs.begin(),
                              current.log_probs.end());
      arrays.sampled.insert(arrays.sampled.end(), current.sampled_log_probs.begin(),
                            current.sampled_log_probs.end());
      const v1::Reduced reduced = current.Reduced(sequence.records, kSlots, 0, length);
      for (const float value : Values<float>(reduced.log_envelopes())) {
        arrays.envelopes.push_back(value);
      }
      for (const float value : Values<float>(reduced.covered_masses())) {
        arrays.masses.push_back(value);
      }
    }
    return arrays;
  }

  std::unique_ptr<Client> Connect(size_t micro_batch_bytes) {
    auto client =
        Client::Connect(live_.server().grpc_address(), {.micro_batch_bytes = micro_batch_bytes});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
};

void ExpectSame(const Evaluation& got, const Evaluation& expected) {
  EXPECT_EQ(got.accept_bits, expected.accept_bits);
  EXPECT_EQ(got.decisions, expected.decisions);
  EXPECT_EQ(got.acceptance_probabilities, expected.acceptance_probabilities);
  EXPECT_EQ(got.ratios, expected.ratios);
  EXPECT_EQ(got.log_ratios, expected.log_ratios);
  EXPECT_EQ(got.surrogates, expected.surrogates);
  EXPECT_EQ(got.coefficients, expected.coefficients);
  ASSERT_EQ(got.log_ratio_sums.size(), expected.log_ratio_sums.size());
  for (size_t i = 0; i < got.log_ratio_sums.size(); ++i) {
    EXPECT_EQ(got.log_ratio_sums[i].log_ratio, expected.log_ratio_sums[i].log_ratio);
    EXPECT_EQ(got.log_ratio_sums[i].positions, expected.log_ratio_sums[i].positions);
  }
  EXPECT_EQ(got.totals.SerializeAsString(), expected.totals.SerializeAsString());
  ASSERT_EQ(got.slice_totals.size(), expected.slice_totals.size());
  for (size_t i = 0; i < got.slice_totals.size(); ++i) {
    EXPECT_EQ(got.slice_totals[i].SerializeAsString(),
              expected.slice_totals[i].SerializeAsString());
  }
  ASSERT_EQ(got.missing.size(), expected.missing.size());
  for (size_t i = 0; i < got.missing.size(); ++i) {
    EXPECT_EQ(got.missing[i].slice, expected.missing[i].slice);
    EXPECT_EQ(got.missing[i].first_position, expected.missing[i].first_position);
    EXPECT_EQ(got.missing[i].length, expected.missing[i].length);
  }
  ASSERT_EQ(got.prefix_curve.size(), expected.prefix_curve.size());
  for (size_t i = 0; i < got.prefix_curve.size(); ++i) {
    EXPECT_EQ(got.prefix_curve[i].SerializeAsString(),
              expected.prefix_curve[i].SerializeAsString());
  }
  EXPECT_EQ(got.newly_counted, expected.newly_counted);
}

TEST_F(CppClientTest, MicroBatchesOverStreamsGiveWhatOneCallGives) {
  const Arrays arrays = AllArrays();
  const GatheredValues gathered{arrays.log_probs, arrays.sampled};
  const ReducedValues reduced{arrays.sampled, arrays.envelopes, arrays.masses};
  const EvaluateOptions options{
      .draw = 3, .outputs = {v1::ACCEPT_BITS, v1::DECISIONS, v1::ACCEPTANCE_PROBABILITIES}};
  EvaluateOptions gathered_options = options;
  gathered_options.prefix_curve = {1, 3, 6};
  gathered_options.total_variation = true;
  const auto client = Connect(/*micro_batch_bytes=*/1 << 30);
  MakeRun("once-gathered");
  MakeRun("once-reduced");
  const auto once = client->Evaluate({"once-gathered"}, arrays.slices, gathered, gathered_options);
  const auto once_reduced = client->Evaluate({"once-reduced"}, arrays.slices, reduced, options);
  ASSERT_TRUE(once.ok()) << once.status();
  ASSERT_TRUE(once_reduced.ok()) << once_reduced.status();
  ASSERT_EQ(once->missing.size(), 1);
  ASSERT_EQ(once->prefix_curve.size(), 3);
  for (const size_t bytes : {1, 1000, 3000, 10000}) {
    const auto streaming = Connect(bytes);
    const std::string run = absl::StrCat(bytes);
    MakeRun(run + "g");
    MakeRun(run + "r");
    const auto streamed =
        streaming->Evaluate({run + "g"}, arrays.slices, gathered, gathered_options);
    ASSERT_TRUE(streamed.ok()) << streamed.status();
    ExpectSame(*streamed, *once);
    const auto streamed_reduced = streaming->Evaluate({run + "r"}, arrays.slices, reduced, options);
    ASSERT_TRUE(streamed_reduced.ok()) << streamed_reduced.status();
    ExpectSame(*streamed_reduced, *once_reduced);
  }
}

TEST_F(CppClientTest, AnErrorIsTheServersAndTheClientGoesOn) {
  Arrays arrays = AllArrays();
  MakeRun("run");
  const auto client = Connect(1000);
  const float good = std::exchange(arrays.sampled[150], 0.5f);  // in the third sequence
  const GatheredValues current{arrays.log_probs, arrays.sampled};
  for (int round = 0; round < 3; ++round) {
    const auto refused = client->Evaluate({"run"}, arrays.slices, current, {.draw = 1});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("'s2'"), absl::string_view::npos) << refused.status();
  }
  arrays.sampled[150] = good;
  const auto evaluation = client->Evaluate({"run"}, arrays.slices, current, {.draw = 1});
  EXPECT_TRUE(evaluation.ok()) << evaluation.status();
}

// A server that takes no more positions in one request than the longest sequence has, so that all
// of them get through in several only.
class OptionsTest : public CppClientTest {
 protected:
  OptionsTest() : limited_(Limited()) {
    for (LiveServer* server : {&live_, &limited_}) {
      v1::CreateRunRequest create = LiveServer::RunRequest("run", kSlots, kVocabulary);
      server->CreateRun(create);
      std::vector<v1::AppendRequest> requests{LiveServer::Header("run", kVocabulary)};
      v1::AppendBatch& batch = *requests.emplace_back().mutable_batch();
      for (const NamedSequence& sequence : std::span(sequences_).first(sequences_.size() - 1)) {
        *batch.add_entries()->mutable_block() = sequence.records.Block(sequence.id);
      }
      EXPECT_TRUE(server->Append(requests).status.ok());
    }
    for (const NamedSequence& sequence : sequences_) {
      sampled_ids_.insert(sampled_ids_.end(), sequence.records.sampled_ids.begin(),
                          sequence.records.sampled_ids.end());
    }
    for (size_t i = 0; i < arrays_.sampled.size(); ++i) {
      const auto x = static_cast<float>(i % 17);
      mask_.push_back(i % 5 != 3);
      own_.push_back(-0.1f * x);
      decoupled_.push_back(arrays_.sampled[i] * (1 + 0.01f * x));
      advantages_.push_back(x - 8);
    }
  }

  static ServerOptions Limited() {
    ServerOptions options = LiveServer::Options();
    options.limits.max_evaluate_positions = 333;
    return options;
  }

  // In one request by one server, and by a client that makes small ones of it of the other.
  template <typename Current>
  void ExpectTheSameCutUp(const Current& current, EvaluateOptions options,
                          std::span<const Slice> slices) {
    options.draw = ++draw_;
    const auto whole =
        Client::Connect(live_.server().grpc_address(), {.micro_batch_bytes = size_t{1} << 30});
    const auto cut = Client::Connect(limited_.server().grpc_address(), {.micro_batch_bytes = 3000});
    ASSERT_TRUE(whole.ok() && cut.ok());
    const auto expected = (*whole)->Evaluate({"run"}, slices, current, options);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const auto got = (*cut)->Evaluate({"run"}, slices, current, options);
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*got, *expected);
  }

  // All that is of every position, and every output.
  EvaluateOptions Everything(const v1::Algorithm& algorithm) const {
    return {.outputs = {v1::ACCEPT_BITS, v1::DECISIONS, v1::RATIOS, v1::LOG_RATIOS,
                        v1::ACCEPTANCE_PROBABILITIES, v1::SURROGATES, v1::COEFFICIENTS},
            .mask = mask_,
            .own_log_probs = own_,
            .algorithm = algorithm,
            .advantages = advantages_,
            .sampled_ids = sampled_ids_};
  }

  LiveServer limited_;
  const Arrays arrays_ = AllArrays();
  const GatheredValues gathered_{arrays_.log_probs, arrays_.sampled};
  std::vector<int32_t> sampled_ids_;
  std::vector<uint8_t> mask_;
  std::vector<float> own_, decoupled_, advantages_;
  uint64_t draw_ = 0;
};

TEST_F(OptionsTest, WhatIsOfEveryPositionIsCutUpWithIt) {
  v1::Algorithm algorithm;
  algorithm.mutable_dapo();
  EvaluateOptions options = Everything(algorithm);
  ExpectTheSameCutUp(gathered_, options, arrays_.slices);
  ExpectTheSameCutUp(ReducedValues{arrays_.sampled, arrays_.envelopes, arrays_.masses}, options,
                     arrays_.slices);
  options.decoupled_log_probs = decoupled_;
  ExpectTheSameCutUp(gathered_, options, arrays_.slices);
  algorithm.mutable_dppo_top_k();
  ExpectTheSameCutUp(gathered_, Everything(algorithm), arrays_.slices);
  options = {.outputs = {v1::DECISIONS}, .authors_code = v1::AuthorsCode()};
  ExpectTheSameCutUp(gathered_, options, arrays_.slices);
}

TEST_F(OptionsTest, SoAreHalvesAndLogits) {
  EvaluateOptions options{.outputs = {v1::DECISIONS, v1::ACCEPTANCE_PROBABILITIES},
                          .prefix_curve = {1, 4},
                          .total_variation = true,
                          .mask = mask_};
  std::vector<float> log_probs = arrays_.log_probs;
  for (float& log_prob : log_probs) {
    if (std::isnan(log_prob)) log_prob = -1;  // of an unused slot
  }
  ExpectTheSameCutUp(GatheredValues{log_probs, arrays_.sampled, /*half_precision=*/true}, options,
                     arrays_.slices);
  std::vector<float> logits = arrays_.log_probs;
  std::vector<float> sampled = arrays_.sampled;
  for (float& logit : logits) logit += 1.5f;
  for (float& logit : sampled) logit += 1.5f;
  const std::vector<double> log_sum_exps(sampled.size(), 1.5);
  ExpectTheSameCutUp(LogitValues{logits, sampled, log_sum_exps}, options, arrays_.slices);
}

TEST_F(OptionsTest, SoAreOwnSetsAndDenseLogits) {
  v1::Algorithm algorithm;
  algorithm.mutable_grpo();
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  for (const int32_t token : sampled_ids_) {
    for (const int32_t next : {0, 1, 2}) {
      ids.push_back((token + next) % kVocabulary);
      log_probs.push_back(-1.25f - 0.25f * static_cast<float>(next));
    }
  }
  const std::vector<float> sampled(sampled_ids_.size(), -1.25f);
  ExpectTheSameCutUp(TopKSetValues{ids, log_probs, sampled}, Everything(algorithm), arrays_.slices);

  std::vector<float> logits;
  std::vector<uint16_t> halves;
  for (size_t i = 0; i < sampled_ids_.size() * kVocabulary; ++i) {
    logits.push_back(static_cast<float>(i * 37 % 101) / 30);
    halves.push_back(static_cast<uint16_t>(0x3e00 + i * 37 % 101));  // from 0.125 on
  }
  algorithm.mutable_dppo_top_k();
  EvaluateOptions options = Everything(algorithm);
  options.prefix_curve = {1, 2};
  options.total_variation = true;
  ExpectTheSameCutUp(DenseValues{.logits = logits, .sampled_ids = sampled_ids_}, options,
                     arrays_.slices);
  ExpectTheSameCutUp(DenseValues{.bfloat16_logits = halves, .sampled_ids = sampled_ids_}, options,
                     arrays_.slices);
  ExpectTheSameCutUp(DenseValues{.logits = logits}, {}, arrays_.slices);
}

TEST_F(OptionsTest, GspoIsCutUpWhereItsSumsAllow) {
  v1::Algorithm gspo;
  gspo.mutable_gspo();
  ExpectTheSameCutUp(gathered_, Everything(gspo), arrays_.slices);

  std::vector<Slice> halves;
  for (const Slice& slice : arrays_.slices) {
    if (slice.length < 2) {
      halves.push_back(slice);
      continue;
    }
    const uint32_t half = slice.length / 2;
    halves.push_back({slice.sequence, 0, half});
    halves.push_back({slice.sequence, half, slice.length - half});
  }
  EvaluateOptions options = Everything(gspo);
  for (size_t i = 0; i < halves.size(); ++i) {
    options.log_ratio_sums.push_back(
        {static_cast<int64_t>(i << 20), static_cast<int64_t>(halves[i].length)});
  }
  ExpectTheSameCutUp(gathered_, options, halves);
  EXPECT_FALSE(options.needs_one_request(halves));
  options.log_ratio_sums.clear();
  EXPECT_TRUE(options.needs_one_request(halves));
}

TEST_F(OptionsTest, WhatDependsOnTheWholeBatchStaysInOneRequest) {
  v1::Algorithm clip_cov;
  clip_cov.mutable_clip_cov();
  const auto client =
      Client::Connect(limited_.server().grpc_address(), {.micro_batch_bytes = 3000});
  ASSERT_TRUE(client.ok());
  const auto refused =
      (*client)->Evaluate({"run"}, arrays_.slices, gathered_, Everything(clip_cov));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("883 positions"), absl::string_view::npos)
      << refused.status();
}

TEST_F(OptionsTest, ArraysOfTheWrongLengthAreRefusedWhole) {
  v1::Algorithm dapo;
  dapo.mutable_dapo();
  EvaluateOptions options = Everything(dapo);
  options.advantages = options.advantages.first(500);
  const auto client = Connect(3000);
  const auto refused = client->Evaluate({"run"}, arrays_.slices, gathered_, options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("advantages"), absl::string_view::npos)
      << refused.status();
}

}  // namespace
}  // namespace sis
