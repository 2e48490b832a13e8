// Bad input of Append.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/integration/bad_input.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

using BadAppendTest = BadInputTest;

TEST_F(BadAppendTest, AppendHeader) {
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

TEST_F(BadAppendTest, AppendMessages) {
  v1::AppendRequest batch;
  *batch.mutable_batch()->add_entries()->mutable_block() = GoodBlock("early");
  ExpectStreamEnds(batch, grpc::INVALID_ARGUMENT, "must come first");
  ExpectStreamEnds(v1::AppendRequest(), grpc::INVALID_ARGUMENT, "neither header nor batch");
  const v1::AppendRequest header = LiveServer::Header("run", kVocabulary);
  const LiveServer::Appended twice = connection_.Append({header, header});
  EXPECT_EQ(twice.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(twice.status.error_message(), HasSubstr("sent twice"));
}

TEST_F(BadAppendTest, BlockShapes) {
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

TEST_F(BadAppendTest, BlockValues) {
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
  // The second row is at position 1 of the new sequence and at 3 of the old one, so the number of
  // the position is not compared.
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

TEST_F(BadAppendTest, RaggedBlocks) {
  using B = v1::Block;
  const auto counts = [](uint16_t first, uint16_t second) {
    return [=](B& b) {
      b.set_top_k_counts(Bytes<uint16_t>({first, second}));
      b.mutable_top_k_ids()->resize(20);
      b.mutable_top_k_log_probs()->resize(20);
    };
  };
  const auto spoilt = [&](const std::function<void(B&)>& spoil) {
    return [=](B& b) {
      counts(3, 2)(b);
      spoil(b);
    };
  };
  ExpectInvalid(counts(4, 1), {"top_k_counts at position", "4, more than top_k 3"});
  ExpectInvalid(counts(3, 3), {"top_k_ids: 20 bytes, not the 24 of 6"});
  ExpectInvalid(counts(0, 0), {"top_k_ids: 20 bytes, not the 0"});
  ExpectInvalid(spoilt([](B& b) { b.mutable_top_k_counts()->pop_back(); }),
                {"top_k_counts: 3 bytes, not the 4"});
  ExpectInvalid(spoilt([](B& b) { b.clear_top_k_counts(); }), {"top_k_ids: 20 bytes, not the 24"});
  ExpectInvalid(spoilt([](B& b) { b.mutable_top_k_log_probs()->resize(16); }),
                {"top_k_log_probs: 16 bytes, not the 20"});
  ExpectInvalid(spoilt([](B& b) { Set(b.mutable_top_k_ids(), 4, 1); }),
                {"top_k_ids at position", "slot 1", "id 1 stands twice"});
  ExpectInvalid(spoilt([](B& b) {
                  Set(b.mutable_top_k_ids(), 4, -1);
                  Set(b.mutable_top_k_log_probs(), 4, -kInfinity);
                }),
                {"top_k_ids at position", "slot 1: -1, but top_k_counts is 2"});
  ExpectInvalid(spoilt([](B& b) { b.set_crc32c(1); }), {"crc32c: 1"});
  // Of the record that is there, ragged: acked, and nothing changes.
  v1::Block same = GoodBlock("good");
  counts(3, 2)(same);
  const LiveServer::Appended appended = AppendBlock(same);
  ASSERT_EQ(appended.acks.size(), 1u);
  EXPECT_EQ(appended.acks[0].code(), 0) << appended.acks[0].message();
}

TEST_F(BadAppendTest, ConflictsAndSeals) {
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
        connection_.Append({LiveServer::Header("run", kVocabulary), request});
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
  expect_entry(v1::AppendEntry(), grpc::INVALID_ARGUMENT, "neither block, gap nor seal");
}

TEST_F(BadAppendTest, OneBadEntryLeavesItsNeighboursAlone) {
  v1::AppendRequest request;
  v1::Block bad = GoodBlock("bad");
  bad.clear_top_k_ids();
  *request.mutable_batch()->add_entries()->mutable_block() = GoodBlock("good");
  *request.mutable_batch()->add_entries()->mutable_block() = bad;
  *request.mutable_batch()->add_entries()->mutable_block() = GoodBlock("good");
  const LiveServer::Appended appended =
      connection_.Append({LiveServer::Header("run", kVocabulary), request});
  ASSERT_EQ(appended.acks.size(), 3u);
  EXPECT_EQ(appended.acks[0].code(), 0);
  EXPECT_EQ(appended.acks[1].code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(appended.acks[2].code(), 0);
}

}  // namespace
}  // namespace sis
