#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "server/testing/allocations.h"
#include "server/testing/random_pieces.h"
#include "server/testing/same_append.h"
#include "server/wire/append_request.h"
#include "server/wire/append_response.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

v1::AppendEntry BlockEntry(const std::string& id, uint32_t first_position, int count) {
  v1::AppendEntry entry;
  v1::Block& block = *entry.mutable_block();
  block.mutable_sequence()->set_id(id);
  block.mutable_sequence()->set_attempt(first_position % 3);
  block.set_first_position(first_position);
  block.set_policy_version(uint64_t{first_position} << 40);
  block.set_sampled_ids(std::string(4 * count, 'a'));
  block.set_sampled_log_probs(std::string(4 * count, 'b'));
  block.set_top_k_ids(std::string(40 * count, 'c'));
  block.set_top_k_log_probs(std::string(40 * count, 'd'));
  if (first_position % 2 == 0) block.set_crc32c(0x80000000u + first_position);
  if (first_position % 3 == 0) block.set_top_k_counts(std::string(2 * count, 'e'));
  return entry;
}

// So many blocks, of several lengths, and a seal.
v1::AppendRequest Request(int blocks) {
  v1::AppendRequest request;
  v1::AppendBatch& batch = *request.mutable_batch();
  for (int i = 0; i < blocks; ++i) {
    *batch.add_entries() = BlockEntry("prompt-" + std::to_string(i), 1000 * i, 1 + i % 3 * 8);
  }
  v1::AppendEntry seal;
  seal.mutable_seal()->mutable_sequence()->set_id("a");
  seal.mutable_seal()->set_length(300);
  *batch.add_entries() = seal;
  return request;
}

// With all the memory in the world.
absl::Status Parse(ScatteredBytes bytes, ReceivedAppend& received) {
  ByteBudget budget(INT64_MAX);
  ParsingCharge charge(budget);
  return received.Parse(std::move(bytes), charge);
}

// Whether protobuf parses the bytes; if so, so must ReceivedAppend, and find the same.
bool AgreesWithProtobuf(const std::string& bytes) {
  v1::AppendRequest expected;
  const bool valid = expected.ParseFromString(bytes);
  ReceivedAppend received;
  for (const size_t longest : {1, 7, 100000}) {
    const RandomPieces pieces(bytes, longest, 1);
    const absl::Status status = Parse(pieces.bytes(), received);
    EXPECT_EQ(status.ok(), valid) << status;
    if (valid) {
      EXPECT_TRUE(SameRequest(received, expected)) << expected.ShortDebugString();
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_FALSE(received.is_batch() || received.is_header());
    }
  }
  return valid;
}

TEST(AppendRequestTest, HasWhatProtobufWrites) {
  EXPECT_TRUE(AgreesWithProtobuf(Request(20).SerializeAsString()));
  v1::AppendRequest header;
  header.mutable_header()->set_worker("w");
  EXPECT_TRUE(AgreesWithProtobuf(header.SerializeAsString()));
  v1::AppendRequest nothing;
  EXPECT_TRUE(AgreesWithProtobuf(nothing.SerializeAsString()));
  nothing.mutable_batch();
  EXPECT_TRUE(AgreesWithProtobuf(nothing.SerializeAsString()));
  nothing.mutable_batch()->add_entries();
  EXPECT_TRUE(AgreesWithProtobuf(nothing.SerializeAsString()));
}

TEST(AppendRequestTest, AnUsualOneAllocatesNothing) {
  const std::string bytes = Request(20).SerializeAsString();
  const std::string_view piece = bytes;
  ReceivedAppend received;
  ASSERT_TRUE(Parse(ScatteredBytes({&piece, 1}), received).ok());
  ScatteredBytes again({&piece, 1});
  const int64_t before = allocations;
  const bool parsed = Parse(std::move(again), received).ok();
  EXPECT_EQ(allocations, before);
  EXPECT_TRUE(parsed);
  EXPECT_EQ(received.entries().size(), 21);
  EXPECT_GT(ScatteredBytes({&piece, 1}).size(), 0);
  EXPECT_GT(allocations, before) << "they aren't counted";
}

std::string Field(int number, const std::string& bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size();; size >>= 7) {
    field.push_back(static_cast<char>(size < 0x80 ? size : size | 0x80));
    if (size < 0x80) return field + bytes;
  }
}
std::string InBatch(const std::string& entry) { return Field(2, Field(1, entry)); }

// What protobuf's writers don't do, and its readers take.
TEST(AppendRequestTest, UnusualMessagesMeanWhatTheyMeanToProtobuf) {
  google::protobuf::LogSilencer silencer;
  const std::string block = BlockEntry("a", 3, 1).block().SerializeAsString();
  const std::string other = BlockEntry("b", 4, 2).block().SerializeAsString();
  const std::string seal = Field(3, "\x10\x05");
  // The later one counts; parts of one message are put together.
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block) + Field(1, other))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block + other))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block) + seal)));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(seal + Field(1, block))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block)) + InBatch(Field(1, other))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, "") + Field(1, Field(1, "")))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(seal) + InBatch(seal)));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block)) + Field(1, "")));
  EXPECT_TRUE(AgreesWithProtobuf(Field(1, "") + InBatch(Field(1, block))));
  // Fields that are unknown (2000), or of another wire type.
  const std::string unknown = std::string("\x82\x7d\x02xy", 5);
  EXPECT_TRUE(AgreesWithProtobuf(unknown + InBatch(Field(1, block))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(unknown + Field(1, block))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block + unknown))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block + Field(2, "xy")))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, block + "\x83\x7d\x84\x7d"))));  // a group
  EXPECT_FALSE(AgreesWithProtobuf(InBatch(Field(1, block + "\x83\x7d"))));
  // Numbers longer than need be, or than their type.
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, std::string("\x10\x83\x80\x00", 4)))));
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, "\x10\xff\xff\xff\xff\xff\x01"))));
  EXPECT_TRUE(
      AgreesWithProtobuf(InBatch(Field(1, "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))));
  EXPECT_FALSE(
      AgreesWithProtobuf(InBatch(Field(1, "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))));
  EXPECT_TRUE(AgreesWithProtobuf(Field(2, Field(2, "/a") + Field(2, "/b"))));
  EXPECT_TRUE(AgreesWithProtobuf(Field(2, Field(2, "/a") + Field(1, Field(1, block)))));
  // Names beyond ASCII.
  EXPECT_TRUE(AgreesWithProtobuf(InBatch(Field(1, Field(1, Field(1, "\xc3\xa9"))))));
  EXPECT_FALSE(AgreesWithProtobuf(InBatch(Field(1, Field(1, Field(1, "\xc3"))))));
  // Sizes beyond what they stand in.
  EXPECT_FALSE(AgreesWithProtobuf(InBatch(std::string("\x0a\x05", 2))));
  EXPECT_FALSE(AgreesWithProtobuf(InBatch("\x0a\x82\x80\x80\x80\x10" + Field(1, ""))));
  EXPECT_FALSE(AgreesWithProtobuf(InBatch(Field(1, std::string("\x22\x05xy", 4)))));
}

TEST(AppendRequestTest, AgreesWithProtobufOnMutatedMessages) {
  google::protobuf::LogSilencer silencer;
  const std::string whole = Request(1).SerializeAsString();
  std::mt19937 random(20260107);
  constexpr int kMessages = 3000;
  int valid = 0;
  for (int i = 0; i < kMessages && !HasFailure(); ++i) {
    std::string bytes = whole;
    for (uint32_t change = random() % 3 + 1; change > 0; --change) {
      bytes[random() % bytes.size()] = static_cast<char>(random() >> (random() % 2 == 0 ? 1 : 0));
    }
    if (i % 4 == 0) bytes.resize(random() % bytes.size());
    valid += AgreesWithProtobuf(bytes);
  }
  EXPECT_GT(valid, kMessages / 10);
  EXPECT_LT(valid, kMessages * 9 / 10);
}

// What is charged for a message that is a batch of so many entries.
int64_t Charged(const std::string& bytes, size_t entries) {
  const std::string_view piece = bytes;
  ByteBudget budget(INT64_MAX);
  ParsingCharge charge(budget);
  ReceivedAppend received;
  EXPECT_TRUE(received.Parse(ScatteredBytes({&piece, 1}), charge).ok());
  EXPECT_EQ(received.entries().size(), entries);
  return budget.used();
}

TEST(AppendRequestTest, EntriesAreChargedHoweverTheyAreRead) {
  constexpr int64_t kLeast = sizeof(AppendEntryView) + sizeof(EntryAck);
  v1::AppendRequest request;
  for (int i = 0; i < 1000; ++i) request.mutable_batch()->add_entries();
  const std::string empty = request.SerializeAsString();
  EXPECT_GT(Charged(empty, 1000), 1000 * kLeast);
  EXPECT_LT(Charged(empty, 1000), 1000 * 1000);
  const std::string unknown = "\x82\x7d\x02xy";
  const auto by_protobuf = static_cast<int64_t>(request.SpaceUsedLong());
  EXPECT_GT(Charged(empty + unknown, 1000), 1000 * kLeast + by_protobuf);
  EXPECT_LT(Charged(empty + unknown, 1000), 1000 * 2000);
  // With arrays and ids it is these besides.
  EXPECT_LT(Charged(Request(1000).SerializeAsString(), 1001), 1001 * 1000 + (64 << 10));
}

TEST(AppendRequestTest, WhatThereIsNoRoomForIsRefused) {
  v1::AppendRequest request = Request(0);
  request.mutable_batch()->mutable_entries(0)->mutable_seal()->mutable_sequence()->set_id(
      std::string(50'000, 'x'));
  for (const std::string& bytes :
       {Request(1000).SerializeAsString(), request.SerializeAsString(),
        InBatch(Field(3, Field(1, Field(1, std::string(100'000, 'x') + "\xc3\xa9"))))}) {
    const std::string_view piece = bytes;
    ByteBudget budget(100'000);
    ParsingCharge charge(budget);
    ReceivedAppend received;
    const absl::Status status = received.Parse(ScatteredBytes({&piece, 1}), charge);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_FALSE(received.is_batch());
    charge.GiveBack();
    EXPECT_EQ(budget.used(), 0);
  }
}

TEST(AppendRequestTest, NoBatchHasMoreEntriesThanAreAcked) {
  v1::AppendRequest request;
  for (size_t i = 0; i < ReceivedAppend::kMostEntries; ++i) request.mutable_batch()->add_entries();
  const std::string unknown = "\x82\x7d\x02xy";
  const std::string most = request.SerializeAsString();
  EXPECT_GT(Charged(most, ReceivedAppend::kMostEntries), 0);
  EXPECT_GT(Charged(most + unknown, ReceivedAppend::kMostEntries), 0);
  request.mutable_batch()->add_entries();
  for (const std::string& bytes :
       {request.SerializeAsString(), request.SerializeAsString() + unknown}) {
    const std::string_view piece = bytes;
    ReceivedAppend received;
    const absl::Status status = Parse(ScatteredBytes({&piece, 1}), received);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(status.message(), "batch.entries: 65537, more than 65536 in a message");
  }
}

TEST(AppendRequestTest, AClearedOneKeepsLittle) {
  const std::string bytes = Request(1000).SerializeAsString();
  const std::string_view piece = bytes;
  ReceivedAppend received;
  ASSERT_TRUE(Parse(ScatteredBytes({&piece, 1}), received).ok());
  received.Clear();
  EXPECT_TRUE(received.entries().empty());
  EXPECT_FALSE(received.is_batch());
  ScatteredBytes again({&piece, 1});
  const int64_t before = allocations;
  const bool parsed = Parse(std::move(again), received).ok();
  EXPECT_EQ(allocations, before + 1) << "its memory had gone";
  EXPECT_TRUE(parsed);
}

TEST(AppendResponseTest, IsWhatProtobufWrites) {
  const v1::AppendRequest request = Request(20);
  const std::vector<AppendEntryView> entries = EntriesOf(request.batch());
  std::vector<EntryAck> acks(entries.size());
  acks[1].committed_length = 300;
  acks[2] = {.committed_length = 4194304, .status = absl::AlreadyExistsError("other content")};
  acks[3] = {.retry_seconds = 0.5, .status = absl::ResourceExhaustedError(std::string(300, 'x'))};
  acks[4].status = absl::InvalidArgumentError("");
  v1::AppendResponse expected;
  for (size_t i = 0; i < acks.size(); ++i) {
    v1::Ack& ack = *expected.add_acks();
    ack.mutable_sequence()->set_id(std::string(entries[i].sequence_id));
    ack.mutable_sequence()->set_attempt(entries[i].attempt);
    ack.set_committed_length(acks[i].committed_length);
    ack.set_code(static_cast<int>(acks[i].status.code()));
    ack.set_message(std::string(acks[i].status.message()));
    ack.set_retry_seconds(acks[i].retry_seconds);
  }
  std::string bytes = "what was there before";
  WriteAppendResponse(entries, acks, bytes);
  EXPECT_EQ(bytes, expected.SerializeAsString());
  WriteAppendResponse(entries, std::span(acks).first(2), bytes);
  EXPECT_EQ(v1::AppendResponse().ParseFromString(bytes), true);
  WriteAppendResponse({}, {}, bytes);
  EXPECT_EQ(bytes, "");
}

}  // namespace
}  // namespace sis
