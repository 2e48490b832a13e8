// Every bad input of the API, over gRPC: the right code, a message that names what is wrong,
// nothing changed, and the server goes on.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "tests/integration/live_server.h"

namespace sis {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kTopK = 3;
constexpr int kVocabulary = 10;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two valid positions.
v1::Block GoodBlock(const std::string& id, uint32_t first_position = 0) {
  v1::Block block;
  block.mutable_sequence()->set_id(id);
  block.set_first_position(first_position);
  block.set_sampled_ids(Bytes<int32_t>({4, 9}));
  block.set_sampled_log_probs(Bytes<float>({-0.5f, -3.0f}));
  block.set_top_k_ids(Bytes<int32_t>({4, 2, 7, 1, 3, -1}));
  block.set_top_k_log_probs(Bytes<float>({-0.5f, -1.5f, -2.5f, -0.25f, -2.0f, -kInfinity}));
  return block;
}

template <typename T>
void Set(std::string* bytes, size_t index, T value) {
  std::memcpy(bytes->data() + index * sizeof(T), &value, sizeof(T));
}

class BadInputTest : public testing::Test {
 protected:
  void SetUp() override {
    live_.CreateRun(LiveServer::RunRequest("run", kTopK, kVocabulary));
    const LiveServer::Appended appended = AppendBlock(GoodBlock("good"));
    ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
    ASSERT_EQ(appended.acks.at(0).code(), 0) << appended.acks.at(0).message();
    ASSERT_EQ(appended.acks.at(0).committed_length(), 2u);
    before_ = State();
  }

  // Nothing has changed, and the server answers.
  void TearDown() override {
    EXPECT_EQ(State(), before_);
    v1::EvaluateResponse response;
    const grpc::Status status = live_.Evaluate(GoodEvaluate(), response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.totals().accepted() + response.totals().rejected(), 1u);
    EXPECT_EQ(response.totals().outside_top_k(), 1u);
  }

  LiveServer::Appended AppendBlock(const v1::Block& block) {
    v1::AppendRequest request;
    *request.mutable_batch()->add_entries()->mutable_block() = block;
    return live_.Append({LiveServer::Header("run", kVocabulary), request});
  }

  v1::EvaluateRequest GoodEvaluate() {
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id("run");
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id("good");
    slice.set_length(2);
    request.mutable_gathered()->set_log_probs(
        Bytes<float>({-0.6f, -1.4f, -2.5f, -0.25f, -2.0f, kNan}));
    request.mutable_gathered()->set_sampled_log_probs(Bytes<float>({-0.6f, -3.0f}));
    return request;
  }

  v1::EvaluateRequest GoodReduced() {
    v1::EvaluateRequest request = GoodEvaluate();
    request.mutable_reduced()->set_sampled_log_probs(Bytes<float>({-0.6f, -3.0f}));
    request.mutable_reduced()->set_log_envelopes(Bytes<float>({0.1f, 0.0f}));
    request.mutable_reduced()->set_covered_masses(Bytes<float>({0.9f, 0.9f}));
    return request;
  }

  // K' = 2; the first position's last slot is unused.
  v1::EvaluateRequest GoodTopKSet() {
    v1::EvaluateRequest request = GoodEvaluate();
    v1::TopK& form = *request.mutable_top_k_set();
    form.set_sampled_log_probs(Bytes<float>({-0.6f, -3.0f}));
    form.set_top_k(2);
    form.set_ids(Bytes<int32_t>({4, -1, 3, 1}));
    form.set_log_probs(Bytes<float>({-0.6f, -kInfinity, -1.0f, -1.0f}));
    return request;
  }

  // All that a client can see of the runs, and the digest of the record.
  std::string State() {
    std::string state;
    {
      grpc::ClientContext context;
      v1::ListRunsResponse response;
      EXPECT_TRUE(live_.stub().ListRuns(&context, {}, &response).ok());
      state = response.DebugString();
    }
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    request.add_slices()->mutable_sequence()->set_id("good");
    auto reader = live_.stub().FetchTopK(&context, request);
    v1::FetchTopKResponse response;
    while (reader->Read(&response)) state += response.DebugString();
    EXPECT_TRUE(reader->Finish().ok());
    return state;
  }

  // The block is refused with this code; the message names the sequence and each of the parts.
  void ExpectRefused(const v1::Block& block, grpc::StatusCode code,
                     const std::vector<std::string>& parts) {
    const LiveServer::Appended appended = AppendBlock(block);
    ASSERT_TRUE(appended.status.ok()) << "one bad block must not end the stream";
    ASSERT_EQ(appended.acks.size(), 1u);
    EXPECT_EQ(appended.acks[0].code(), code) << appended.acks[0].message();
    for (const std::string& part : parts) EXPECT_THAT(appended.acks[0].message(), HasSubstr(part));
  }

  void ExpectInvalid(const std::function<void(v1::Block&)>& spoil,
                     const std::vector<std::string>& parts) {
    for (const char* id : {"bad", "good"}) {  // a new sequence, and one with records
      v1::Block block = GoodBlock(id, std::string(id) == "good" ? 2 : 0);
      spoil(block);
      ExpectRefused(block, grpc::INVALID_ARGUMENT, parts);
    }
  }

  void ExpectInvalid(const v1::EvaluateRequest& request, const std::vector<std::string>& parts) {
    ExpectStatus(request, grpc::INVALID_ARGUMENT, parts);
  }
  void ExpectStatus(const v1::EvaluateRequest& request, grpc::StatusCode code,
                    const std::vector<std::string>& parts) {
    v1::EvaluateResponse response;
    const grpc::Status status = live_.Evaluate(request, response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    for (const std::string& part : parts) EXPECT_THAT(status.error_message(), HasSubstr(part));
  }

  void ExpectStreamEnds(const v1::AppendRequest& first, grpc::StatusCode code,
                        const std::string& part) {
    const LiveServer::Appended appended = live_.Append({first});
    EXPECT_EQ(appended.status.error_code(), code);
    EXPECT_THAT(appended.status.error_message(), HasSubstr(part));
  }

  LiveServer live_;
  std::string before_;
};

TEST_F(BadInputTest, CreateRun) {
  const auto expect = [&](const std::function<void(v1::CreateRunRequest&)>& spoil,
                          grpc::StatusCode code, const std::string& part) {
    v1::CreateRunRequest request = LiveServer::RunRequest("new", kTopK, kVocabulary);
    spoil(request);
    grpc::ClientContext context;
    v1::CreateRunResponse response;
    const grpc::Status status = live_.stub().CreateRun(&context, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  };
  using R = v1::CreateRunRequest;
  const auto invalid = grpc::INVALID_ARGUMENT;
  expect([](R& r) { r.set_run_id(""); }, invalid, "run_id");
  expect([](R& r) { r.set_run_id("a b"); }, invalid, "run_id 'a b'");
  expect([](R& r) { r.set_run_id(std::string(257, 'x')); }, invalid, "257 bytes");
  expect([](R& r) { r.mutable_config()->set_top_k(0); }, invalid, "config.top_k 0");
  expect([](R& r) { r.mutable_config()->set_top_k(129); }, invalid, "config.top_k 129");
  expect([](R& r) { r.mutable_config()->set_vocabulary_size(0); }, invalid, "vocabulary_size 0");
  expect([](R& r) { r.mutable_config()->set_vocabulary_size(1 << 25); }, invalid,
         "vocabulary_size 33554432");
  expect([](R& r) { r.mutable_config()->set_time_to_live_seconds(-1); }, invalid,
         "time_to_live_seconds -1");
  expect([](R& r) { r.mutable_config()->set_time_to_live_seconds(std::nan("")); }, invalid,
         "time_to_live_seconds nan");
  expect([](R& r) { r.mutable_config()->set_model(std::string(300, 'x')); }, invalid,
         "config.model");
  expect([](R& r) { r.clear_config(); }, invalid, "config.vocabulary_size 0");
  expect(
      [](R& r) {
        r.set_run_id("run");
        r.mutable_config()->set_seed(2);
      },
      grpc::ALREADY_EXISTS, "seed");
}

TEST_F(BadInputTest, AppendHeader) {
  const v1::AppendRequest good = LiveServer::Header("run", kVocabulary);
  const auto expect = [&](const std::function<void(v1::AppendHeader&)>& spoil,
                          grpc::StatusCode code, const std::string& part) {
    v1::AppendRequest request = good;
    spoil(*request.mutable_header());
    ExpectStreamEnds(request, code, part);
  };
  using H = v1::AppendHeader;
  const auto invalid = grpc::INVALID_ARGUMENT;
  expect([](H& h) { h.mutable_run()->set_run_id("nobody"); }, grpc::NOT_FOUND, "'nobody'");
  expect([](H& h) { h.mutable_run()->set_incarnation(2); }, grpc::FAILED_PRECONDITION,
         "incarnation 1, not 2");
  expect([](H& h) { h.set_vocabulary_size(11); }, invalid, "vocabulary_size: 11");
  expect([](H& h) { h.set_worker(std::string(300, 'w')); }, invalid, "worker");
  expect([](H& h) { h.clear_sampling(); }, invalid, "sampling.log_probs");
  const auto sampling = [&](const std::function<void(v1::Sampling&)>& spoil,
                            const std::string& part) {
    expect([&](H& h) { spoil(*h.mutable_sampling()); }, invalid, "sampling." + part);
  };
  using S = v1::Sampling;
  sampling([](S& s) { s.set_temperature(0); }, "temperature: 0");
  sampling([](S& s) { s.set_temperature(kNan); }, "temperature: nan");
  sampling([](S& s) { s.set_temperature(0.7); }, "temperature: 0.7");
  sampling([](S& s) { s.set_top_p(0.9); }, "top_p: 0.9");
  sampling([](S& s) { s.set_top_p(1.5); }, "top_p: 1.5");
  sampling([](S& s) { s.set_top_k(50); }, "top_k: 50");
  sampling([](S& s) { s.set_top_k(-2); }, "top_k: -2");
  sampling([](S& s) { s.set_min_p(0.1); }, "min_p: 0.1");
  sampling([](S& s) { s.set_min_p(kNan); }, "min_p: nan");
  sampling([](S& s) { s.set_presence_penalty(0.5); }, "presence_penalty: 0.5");
  sampling([](S& s) { s.set_frequency_penalty(0.5); }, "frequency_penalty: 0.5");
  sampling([](S& s) { s.set_repetition_penalty(1.1); }, "repetition_penalty: 1.1");
  sampling([](S& s) { s.set_logit_bias(true); }, "logit_bias");
  sampling([](S& s) { s.set_grammar(true); }, "grammar");
}

TEST_F(BadInputTest, AppendMessages) {
  v1::AppendRequest batch;
  *batch.mutable_batch()->add_entries()->mutable_block() = GoodBlock("early");
  ExpectStreamEnds(batch, grpc::INVALID_ARGUMENT, "must come first");
  ExpectStreamEnds(v1::AppendRequest(), grpc::INVALID_ARGUMENT, "neither header nor batch");
  const v1::AppendRequest header = LiveServer::Header("run", kVocabulary);
  const LiveServer::Appended twice = live_.Append({header, header});
  EXPECT_EQ(twice.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(twice.status.error_message(), HasSubstr("sent twice"));
}

TEST_F(BadInputTest, BlockShapes) {
  using B = v1::Block;
  ExpectInvalid([](B& b) { b.mutable_sequence()->set_id(""); }, {"sequence.id"});
  ExpectInvalid([](B& b) { b.mutable_sequence()->set_id(std::string(257, 'x')); }, {"257 bytes"});
  ExpectInvalid([](B& b) { b.clear_sampled_ids(); }, {"sampled_ids: empty"});
  ExpectInvalid([](B& b) { b.mutable_sampled_ids()->pop_back(); }, {"sampled_ids: 7 bytes"});
  ExpectInvalid([](B& b) { b.mutable_sampled_log_probs()->append(4, '\0'); },
                {"sampled_log_probs: 12 bytes, not the 8"});
  ExpectInvalid([](B& b) { b.mutable_top_k_ids()->resize(20); }, {"top_k_ids: 20 bytes"});
  ExpectInvalid([](B& b) { b.clear_top_k_log_probs(); }, {"top_k_log_probs: 0 bytes"});
  ExpectInvalid([](B& b) { b.set_first_position((1 << 22) - 1); }, {"first_position 4194303 + 2"});
  ExpectInvalid([](B& b) { b.set_first_position(UINT32_MAX); }, {"first_position 4294967295"});
  ExpectInvalid([](B& b) { b.set_crc32c(1); }, {"crc32c: 1"});
}

TEST_F(BadInputTest, BlockValues) {
  using B = v1::Block;
  const auto sampled_id = [](int32_t id) {
    return [=](B& b) { Set(b.mutable_sampled_ids(), 1, id); };
  };
  const auto sampled = [](float x) {
    return [=](B& b) { Set(b.mutable_sampled_log_probs(), 1, x); };
  };
  const auto id = [](size_t slot, int32_t value) {
    return [=](B& b) { Set(b.mutable_top_k_ids(), slot, value); };
  };
  const auto log_prob = [](size_t slot, float x) {
    return [=](B& b) { Set(b.mutable_top_k_log_probs(), slot, x); };
  };
  // The second row is at position 1 of a new sequence, at 3 of the old one: both end in its slot.
  ExpectInvalid(sampled_id(-1), {"sampled_ids at position", "-1 is not in [0, 10)"});
  ExpectInvalid(sampled_id(10), {"sampled_ids at position", "10 is not in [0, 10)"});
  ExpectInvalid(sampled(kNan), {"sampled_log_probs at position", "nan"});
  ExpectInvalid(sampled(kInfinity), {"sampled_log_probs at position", "inf"});
  ExpectInvalid(sampled(-kInfinity), {"sampled_log_probs at position", "-inf"});
  ExpectInvalid(sampled(0.5f), {"sampled_log_probs at position", "0.5"});
  ExpectInvalid(id(3, 10), {"top_k_ids at position", "slot 0", "10 is neither"});
  ExpectInvalid(id(3, -2), {"top_k_ids at position", "slot 0", "-2 is neither"});
  ExpectInvalid(id(4, 1), {"top_k_ids at position", "slot 1", "id 1 stands twice"});
  ExpectInvalid(id(3, -1), {"top_k_log_probs at position", "slot 0", "unused slot"});
  ExpectInvalid(id(5, 5), {"top_k_log_probs at position", "slot 2", "-inf"});
  ExpectInvalid(log_prob(5, -9.0f), {"top_k_log_probs at position", "slot 2", "unused slot"});
  ExpectInvalid(log_prob(3, kNan), {"top_k_log_probs at position", "slot 0", "nan"});
  ExpectInvalid(log_prob(3, kInfinity), {"top_k_log_probs at position", "slot 0", "inf"});
  ExpectInvalid(log_prob(3, 0.25f), {"top_k_log_probs at position", "slot 0", "0.25"});
  ExpectInvalid(log_prob(4, -0.1f), {"top_k_log_probs at position", "slot 1", "not sorted"});
  ExpectInvalid(log_prob(0, -0.4f), {"sampled_log_probs at position", "slot 0", "differs"});
  ExpectInvalid(
      [&](B& b) {
        log_prob(4, -0.25f)(b);
        id(3, 5)(b);
      },
      {"ties go by id"});
  ExpectInvalid(
      [&](B& b) {
        log_prob(3, -0.1f)(b);
        log_prob(4, -0.2f)(b);
      },
      {"top_k_log_probs at position", "sum to 1.7"});
  ExpectInvalid(
      [&](B& b) {
        id(3, -1)(b);
        log_prob(3, -kInfinity)(b);
      },
      {"top_k_ids at position", "slot 1", "after an unused slot"});
}

TEST_F(BadInputTest, ConflictsAndSeals) {
  v1::Block other = GoodBlock("good");
  Set(other.mutable_sampled_ids(), 1, int32_t{8});
  ExpectRefused(other, grpc::ALREADY_EXISTS, {"'good'", "position 1"});
  v1::Block version = GoodBlock("good");
  version.set_policy_version(5);
  ExpectRefused(version, grpc::ALREADY_EXISTS, {"'good'", "position 0", "version 0, not 5"});
  // Overlaps with equal and different rows: refused whole.
  ExpectRefused(GoodBlock("good", 1), grpc::ALREADY_EXISTS, {"'good'", "position 1"});

  const auto expect_entry = [&](const v1::AppendEntry& entry, grpc::StatusCode code,
                                const std::string& part) {
    v1::AppendRequest request;
    *request.mutable_batch()->add_entries() = entry;
    const LiveServer::Appended appended =
        live_.Append({LiveServer::Header("run", kVocabulary), request});
    ASSERT_EQ(appended.acks.size(), 1u);
    EXPECT_EQ(appended.acks[0].code(), code) << appended.acks[0].message();
    EXPECT_THAT(appended.acks[0].message(), HasSubstr(part));
  };
  v1::AppendEntry seal;
  seal.mutable_seal()->mutable_sequence()->set_id("good");
  seal.mutable_seal()->set_length(1);
  expect_entry(seal, grpc::FAILED_PRECONDITION, "committed up to 2");
  seal.mutable_seal()->set_length(1 << 23);
  expect_entry(seal, grpc::INVALID_ARGUMENT, "seal.length 8388608");
  expect_entry(v1::AppendEntry(), grpc::INVALID_ARGUMENT, "neither block, truncate nor seal");
}

TEST_F(BadInputTest, OneBadEntryLeavesItsNeighboursAlone) {
  v1::AppendRequest request;
  v1::Block bad = GoodBlock("bad");
  bad.clear_top_k_ids();
  *request.mutable_batch()->add_entries()->mutable_block() = GoodBlock("good");
  *request.mutable_batch()->add_entries()->mutable_block() = bad;
  *request.mutable_batch()->add_entries()->mutable_block() = GoodBlock("good");
  const LiveServer::Appended appended =
      live_.Append({LiveServer::Header("run", kVocabulary), request});
  ASSERT_EQ(appended.acks.size(), 3u);
  EXPECT_EQ(appended.acks[0].code(), 0);
  EXPECT_EQ(appended.acks[1].code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(appended.acks[2].code(), 0);
}

TEST_F(BadInputTest, EvaluateShapes) {
  using E = v1::EvaluateRequest;
  const auto expect = [&](const std::function<void(E&)>& spoil, grpc::StatusCode code,
                          const std::vector<std::string>& parts) {
    E request = GoodEvaluate();
    spoil(request);
    ExpectStatus(request, code, parts);
  };
  const auto invalid = grpc::INVALID_ARGUMENT;
  expect([](E& e) { e.mutable_run()->set_run_id("nobody"); }, grpc::NOT_FOUND, {"'nobody'"});
  expect([](E& e) { e.mutable_run()->set_incarnation(7); }, grpc::FAILED_PRECONDITION,
         {"incarnation 1, not 7"});
  expect([](E& e) { e.clear_slices(); }, invalid, {"slices: none"});
  expect([](E& e) { e.mutable_slices(0)->set_length(0); }, invalid, {"slices[0]", "length 0"});
  expect([](E& e) { e.mutable_slices(0)->mutable_sequence()->clear_id(); }, invalid,
         {"slices[0]", "sequence.id"});
  expect([](E& e) { e.mutable_slices(0)->set_first_position(UINT32_MAX); }, invalid,
         {"slices[0]", "'good'", "first_position 4294967295"});
  expect([](E& e) { e.mutable_slices(0)->set_length(1 << 23); }, invalid, {"length 8388608"});
  expect([](E& e) { *e.add_slices() = e.slices(0); }, invalid, {"overlap at position 0", "'good'"});
  expect([](E& e) { e.set_top_k(4); }, invalid, {"top_k: 4"});
  expect([](E& e) { e.clear_form(); }, invalid, {"form"});
  expect([](E& e) { e.add_outputs(static_cast<v1::Output>(99)); }, invalid, {"outputs: 99"});
  expect([](E& e) { e.add_outputs(v1::OUTPUT_UNSPECIFIED); }, invalid, {"outputs: 0"});
  expect([](E& e) { e.set_lease_id(123); }, grpc::FAILED_PRECONDITION, {"lease 123"});
  expect([](E& e) { e.mutable_slices(0)->set_record_digest(5); }, grpc::FAILED_PRECONDITION,
         {"record_digest 5", "'good'"});
  expect([](E& e) { e.mutable_gathered()->mutable_log_probs()->pop_back(); }, invalid,
         {"gathered.log_probs: 23 bytes, not the 24"});
  expect([](E& e) { e.mutable_gathered()->clear_sampled_log_probs(); }, invalid,
         {"gathered.sampled_log_probs: 0 bytes"});
  expect(
      [](E& e) {
        e.mutable_slices(0)->set_length(3);
        e.mutable_gathered()->mutable_log_probs()->append(12, '\0');
        e.mutable_gathered()->mutable_sampled_log_probs()->append(4, '\0');
        e.add_outputs(v1::RATIOS);
      },
      grpc::FAILED_PRECONDITION, {"'good'", "position 2", "never_arrived"});
}

TEST_F(BadInputTest, EvaluateValues) {
  for (const float bad : {kNan, kInfinity, 0.5f}) {
    v1::EvaluateRequest request = GoodEvaluate();
    Set(request.mutable_gathered()->mutable_log_probs(), 3, bad);
    ExpectInvalid(request, {"'good'", "gathered.log_probs at position 1, slot 0"});
    request = GoodEvaluate();
    Set(request.mutable_gathered()->mutable_sampled_log_probs(), 1, bad);
    ExpectInvalid(request, {"'good'", "gathered.sampled_log_probs at position 1"});
    request = GoodReduced();
    Set(request.mutable_reduced()->mutable_sampled_log_probs(), 0, bad);
    ExpectInvalid(request, {"'good'", "reduced.sampled_log_probs at position 0"});
  }
  v1::EvaluateRequest request = GoodEvaluate();
  request.mutable_gathered()->set_log_probs(
      Bytes<float>({-0.1f, -0.2f, -0.3f, -0.25f, -2.0f, kNan}));
  ExpectInvalid(request, {"'good'", "gathered.log_probs at position 0", "sum to 2.46"});
  for (const float bad : {kNan, kInfinity}) {
    request = GoodReduced();
    Set(request.mutable_reduced()->mutable_log_envelopes(), 1, bad);
    ExpectInvalid(request, {"'good'", "reduced.log_envelopes at position 1"});
  }
  for (const float bad : {kNan, kInfinity, -0.1f, 1.1f}) {
    request = GoodReduced();
    Set(request.mutable_reduced()->mutable_covered_masses(), 1, bad);
    ExpectInvalid(request, {"'good'", "reduced.covered_masses at position 1"});
  }
}

TEST_F(BadInputTest, TopKSets) {
  using Form = v1::TopK;
  const auto expect = [&](const std::function<void(Form&)>& spoil,
                          const std::vector<std::string>& parts) {
    v1::EvaluateRequest request = GoodTopKSet();
    spoil(*request.mutable_top_k_set());
    ExpectInvalid(request, parts);
  };
  const auto ids = [](Form& form) { return form.mutable_ids(); };
  const auto log_probs = [](Form& form) { return form.mutable_log_probs(); };
  expect([](Form& f) { f.set_top_k(0); }, {"top_k_set.top_k: 0 is not in [1, 128]"});
  expect([](Form& f) { f.set_top_k(129); }, {"top_k_set.top_k: 129 is not in [1, 128]"});
  expect([](Form& f) { f.set_top_k(1); }, {"top_k_set.ids: 16 bytes, not the 8"});
  expect([&](Form& f) { log_probs(f)->pop_back(); }, {"top_k_set.log_probs: 15 bytes"});
  expect([](Form& f) { f.clear_sampled_log_probs(); }, {"top_k_set.sampled_log_probs: 0 bytes"});
  expect([&](Form& f) { Set(ids(f), 2, 10); },
         {"'good'", "top_k_set.ids at position 1, slot 0: 10 is neither"});
  expect([&](Form& f) { Set(ids(f), 3, 3); }, {"'good'", "position 1, slot 1: id 3 stands twice"});
  expect([&](Form& f) { Set(ids(f), 1, 5); },
         {"'good'", "top_k_set.log_probs at position 0, slot 1: -inf is not a finite"});
  expect([&](Form& f) { Set(log_probs(f), 3, -0.9f); }, {"position 1, slot 1", "not sorted"});
  expect([&](Form& f) { Set(log_probs(f), 2, -0.1f), Set(log_probs(f), 3, -0.1f); },
         {"top_k_set.log_probs at position 1", "sum to 1.8"});
  expect([&](Form& f) { Set(ids(f), 0, -1), Set(log_probs(f), 0, -kInfinity); },
         {"top_k_set.ids at position 0, slot 0: -1: the set is empty"});
  for (const float bad : {kNan, kInfinity, 0.5f}) {
    expect([&](Form& f) { Set(log_probs(f), 2, bad); }, {"top_k_set.log_probs at position 1"});
    expect([&](Form& f) { Set(f.mutable_sampled_log_probs(), 1, bad); },
           {"'good'", "top_k_set.sampled_log_probs at position 1"});
  }
  v1::EvaluateRequest request = GoodTopKSet();
  request.set_total_variation(true);
  ExpectInvalid(request, {"total_variation: needs log-probs at every slot"});
  request = GoodTopKSet();
  request.add_prefix_curve(1);
  ExpectInvalid(request, {"prefix_curve: needs log-probs at every slot"});
}

TEST_F(BadInputTest, Dense) {
  v1::EvaluateRequest good = GoodEvaluate();
  good.mutable_dense()->set_logits(Bytes(std::vector<float>(2 * kVocabulary, 0.5f)));
  good.mutable_dense()->set_sampled_ids(Bytes<int32_t>({4, 9}));
  const auto expect = [&](const std::function<void(v1::EvaluateRequest&)>& spoil,
                          const std::vector<std::string>& parts) {
    v1::EvaluateRequest request = good;
    spoil(request);
    ExpectInvalid(request, parts);
  };
  using E = v1::EvaluateRequest;
  expect([](E& e) { e.mutable_dense()->mutable_logits()->pop_back(); },
         {"dense.logits: 79 bytes, not the 80 of 20 elements"});
  expect([](E& e) { e.mutable_dense()->set_values(v1::Dense::BFLOAT16_LOGITS); },
         {"dense.logits: 80 bytes, not the 40"});
  expect([](E& e) { e.mutable_dense()->set_values(static_cast<v1::Dense::Values>(7)); },
         {"dense.values: 7"});
  expect([](E& e) { e.mutable_dense()->mutable_sampled_ids()->pop_back(); },
         {"dense.sampled_ids: 7 bytes, not the 8"});
  for (const float bad : {kNan, kInfinity}) {
    expect([&](E& e) { Set(e.mutable_dense()->mutable_logits(), 13, bad); },
           {"'good'", "dense.logits at position 1, vocabulary id 3"});
  }
  expect(
      [](E& e) {
        for (int v = 0; v < kVocabulary; ++v)
          Set(e.mutable_dense()->mutable_logits(), v, -kInfinity);
      },
      {"'good'", "dense.logits at position 0: all are -inf"});
  good.mutable_dense()->set_sampled_ids(Bytes<int32_t>({4, 8}));
  ExpectStatus(good, grpc::FAILED_PRECONDITION,
               {"'good'", "dense.sampled_ids at position 1: 8, but token 9 is recorded"});
}

// What is at a masked or a missing position is nobody's business.
TEST_F(BadInputTest, RowsThatAreNotLookedAtMayHoldAnything) {
  v1::EvaluateRequest request = GoodTopKSet();
  request.mutable_slices(0)->set_length(3);  // the last one never arrived
  request.set_mask(std::string("\1\0\1", 3));
  request.set_draw(77);
  v1::TopK& form = *request.mutable_top_k_set();
  form.set_sampled_log_probs(Bytes<float>({-0.6f, kNan, kNan}));
  form.set_ids(Bytes<int32_t>({4, -1, -7, -7, 3, 3}));
  form.set_log_probs(Bytes<float>({-0.6f, -kInfinity, kNan, 1.0f, kInfinity, kNan}));
  v1::EvaluateResponse response;
  const grpc::Status status = live_.Evaluate(request, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.totals().masked(), 1u);
  EXPECT_EQ(response.totals().missing(), 1u);
  EXPECT_EQ(response.totals().accepted() + response.totals().rejected(), 1u);
  before_ = State();  // one draw more
}

TEST_F(BadInputTest, OtherCalls) {
  {
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_lease_seconds(-1);
    request.add_slices()->mutable_sequence()->set_id("good");
    const grpc::Status status = live_.stub().FetchTopK(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("lease_seconds: -1"));
  }
  {
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    const grpc::Status status = live_.stub().FetchTopK(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("slices: none"));
  }
  {
    grpc::ClientContext context;
    v1::GetStepRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_draw(1000);
    v1::GetStepResponse response;
    EXPECT_EQ(live_.stub().GetStep(&context, request, &response).error_code(), grpc::NOT_FOUND);
  }
  {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.mutable_run()->set_run_id("run");
    request.add_sequences()->set_id("good");
    request.add_sequences()->set_id("");
    v1::ReleaseResponse response;
    const grpc::Status status = live_.stub().Release(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("sequence.id"));
  }
  for (const char* run : {"nobody", ""}) {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run_id(run);
    v1::GetRunResponse response;
    EXPECT_EQ(live_.stub().GetRun(&context, request, &response).error_code(), grpc::NOT_FOUND);
  }
}

TEST(AdvanceVersion, MayNotGoBack) {
  LiveServer live;
  live.CreateRun(LiveServer::RunRequest("run", kTopK, kVocabulary));
  for (const auto& [version, code] :
       {std::pair{5, grpc::OK}, {5, grpc::OK}, {4, grpc::FAILED_PRECONDITION}}) {
    grpc::ClientContext context;
    v1::AdvanceVersionRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_policy_version(version);
    v1::AdvanceVersionResponse response;
    EXPECT_EQ(live.stub().AdvanceVersion(&context, request, &response).error_code(), code);
  }
}

}  // namespace
}  // namespace sis
