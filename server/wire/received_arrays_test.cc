#include "server/wire/received_arrays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "server/testing/random_pieces.h"
#include "server/testing/resolve_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

// Whether protobuf parses the bytes; if so, so must ReceivedArrays, and find the same message.
template <typename Message>
bool AgreesWithProtobuf(const std::string& bytes) {
  Message expected;
  const bool valid = expected.ParseFromString(bytes);
  expected.DiscardUnknownFields();
  for (const size_t longest : {1, 7, 100000}) {
    const RandomPieces pieces(bytes, longest, 1);
    Message message;
    ReceivedArrays arrays;
    ByteBudget budget(INT64_MAX);
    ParsingCharge charge(budget);
    const absl::Status status =
        ReceivedArrays::Parse(pieces.bytes(), ShapeOf<Message>(), charge, message, arrays);
    EXPECT_EQ(status.ok(), valid) << status;
    if (!status.ok() || !valid) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ResolveArrays(arrays, message);
    EXPECT_EQ(message.SerializeAsString(), expected.SerializeAsString());
  }
  return valid;
}

std::string Ascending(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 256);
  return bytes;
}

std::string Repeated(const std::string& field, int times) {
  std::string bytes;
  for (int i = 0; i < times; ++i) bytes += field;
  return bytes;
}

v1::EvaluateRequest Request() {
  v1::EvaluateRequest request;
  request.mutable_run()->set_run_id("run");
  for (int i = 0; i < 100; ++i) {
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id("sequence " + std::to_string(i));
    slice.set_length(1000 + i);
    slice.set_record_digest(i);
  }
  request.set_draw(uint64_t{1} << 60);
  request.mutable_gathered()->set_log_probs(Ascending(40000));
  request.mutable_gathered()->set_sampled_log_probs(Ascending(400));
  request.add_outputs(v1::RATIOS);
  return request;
}

TEST(ReceivedArraysTest, AMessageIsWhatProtobufReads) {
  EXPECT_TRUE(AgreesWithProtobuf<v1::EvaluateRequest>(Request().SerializeAsString()));
  EXPECT_TRUE(AgreesWithProtobuf<v1::EvaluateRequest>(""));
}

TEST(ReceivedArraysTest, ArraysDeepInRepeatedMessages) {
  v1::AppendRequest request;
  for (int i = 0; i < 20; ++i) {
    v1::AppendEntry& entry = *request.mutable_batch()->add_entries();
    if (i % 3 == 0) {
      entry.mutable_seal()->set_length(i);
      continue;
    }
    v1::Block& block = *entry.mutable_block();
    block.set_sampled_ids(Ascending(100 * i));
    block.set_top_k_ids(Ascending(i % 2));
    block.set_crc32c(i);
  }
  EXPECT_TRUE(AgreesWithProtobuf<v1::AppendRequest>(request.SerializeAsString()));
}

// Fields of a message by hand: protobuf's own serialiser writes none of what follows.
std::string Field(uint32_t number, const std::string& bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size();; size >>= 7) {
    field.push_back(static_cast<char>((size & 0x7f) | (size >= 0x80 ? 0x80 : 0)));
    if (size < 0x80) break;
  }
  return field + bytes;
}

TEST(ReceivedArraysTest, OfSeveralOccurrencesTheLastCounts) {
  EXPECT_TRUE(
      AgreesWithProtobuf<v1::Gathered>(Field(1, "first") + Field(2, "x") + Field(1, "last")));
  EXPECT_TRUE(AgreesWithProtobuf<v1::Gathered>(Field(1, "first") + Field(1, "")));
}

TEST(ReceivedArraysTest, OccurrencesOfAMessageAreMerged) {
  EXPECT_TRUE(AgreesWithProtobuf<v1::EvaluateRequest>(Field(6, Field(1, "log_probs")) +
                                                      Field(6, Field(2, "sampled_log_probs"))));
}

TEST(ReceivedArraysTest, ALaterMemberOfAOneofClearsTheEarlier) {
  const std::string gathered = Field(6, Field(1, "log_probs"));
  const std::string reduced = Field(7, Field(2, "log_envelopes"));
  EXPECT_TRUE(AgreesWithProtobuf<v1::EvaluateRequest>(gathered + reduced));
  EXPECT_TRUE(
      AgreesWithProtobuf<v1::EvaluateRequest>(gathered + reduced + Field(6, Field(2, "sampled"))));
}

TEST(ReceivedArraysTest, UnknownFieldsAndGroupsAreSkipped) {
  // Numbers that the message will not come to use: 1000 and 1001.
  const std::string unknown = "\xc2\x3e\x07unknown";
  const std::string group = "\xcb\x3e" + Field(6, "not a Gathered") + "\xcc\x3e";
  EXPECT_TRUE(
      AgreesWithProtobuf<v1::EvaluateRequest>(unknown + group + Field(6, Field(1, "known"))));
  // Known numbers with another wire type are unknown fields too.
  EXPECT_TRUE(AgreesWithProtobuf<v1::Gathered>(std::string("\x08\x05\x15zzzz", 7)));
}

// As deep as protobuf follows it, and no deeper, wherever the group begins.
TEST(ReceivedArraysTest, GroupsInGroups) {
  const auto nested = [](int depth) {
    return Repeated("\xcb\x3e", depth) + Repeated("\xcc\x3e", depth);
  };
  EXPECT_TRUE(AgreesWithProtobuf<v1::EvaluateRequest>(nested(100)));
  EXPECT_FALSE(AgreesWithProtobuf<v1::EvaluateRequest>(nested(101)));
  EXPECT_TRUE(AgreesWithProtobuf<v1::EvaluateRequest>(Field(6, nested(99))));
  EXPECT_FALSE(AgreesWithProtobuf<v1::EvaluateRequest>(Field(6, nested(100))));
}

// The size of a field that is skipped says where the next one begins.
TEST(ReceivedArraysTest, SizesOfUnknownFieldsAreChecked) {
  const std::string endless = "\xc2\x3e\x80\x80\x80\x80\x80\x80!";
  const std::string group = "\xcb\x3e" + endless + "\xcc\x3e";
  EXPECT_FALSE(AgreesWithProtobuf<v1::EvaluateRequest>(endless));
  EXPECT_FALSE(AgreesWithProtobuf<v1::EvaluateRequest>(group));
}

TEST(ReceivedArraysTest, LeadingZerosInTagsAndSizes) {
  EXPECT_TRUE(
      AgreesWithProtobuf<v1::Gathered>(std::string("\x8a\x80\x00\x83\x80\x80\x80\x00"
                                                   "abc",
                                                   11)));
}

TEST(ReceivedArraysTest, MalformedIsRefused) {
  const std::vector<std::string> malformed = {
      "\x0a",                                      // no size
      "\x0a\x05zzzz",                              // shorter than its size
      "\x0a\xff\xff\xff\xff\xff",                  // an endless size
      std::string("\x0a\x80\x80\x80\x80\x10", 6),  // a size of 2^32
      std::string("\x0a\xff\xff\xff\xff\x07", 6),  // a size just below 2^31
      std::string("\x02\x00", 2),                  // field 0
      "\x0f",                                      // no such wire type
      "\x0c",                                      // the end of no group
      "\x0b",                                      // a group without an end
      "\x0b\x14",                                  // a group that ends as another
      "\x0d"
      "abc",                                               // 4 bytes, of which 3 are there
      "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  // 11 bytes of varint
      "\x8a\x80\x80\x80\x80\x00",                          // 6 bytes of tag
  };
  for (const std::string& bytes : malformed) {
    EXPECT_FALSE(AgreesWithProtobuf<v1::Gathered>(bytes)) << testing::PrintToString(bytes);
    EXPECT_FALSE(AgreesWithProtobuf<v1::EvaluateRequest>(Field(6, bytes)));
  }
}

TEST(ReceivedArraysTest, AFieldMustNotReachOutOfItsMessage) {
  // Each would be well-formed if the message were longer, and is followed by enough bytes.
  for (const char* const inner : {"\x0a\x05zzzz", "\x08\x80",
                                  "\x0d"
                                  "abc",
                                  "\x8a"}) {
    EXPECT_FALSE(AgreesWithProtobuf<v1::EvaluateRequest>(Field(6, inner) + Field(6, "\x0a\x01z")));
  }
}

TEST(ReceivedArraysTest, TextMustBeUtf8) {
  EXPECT_FALSE(AgreesWithProtobuf<v1::EvaluateRequest>(Field(1, Field(1, "\xff"))));
}

TEST(ArrayFieldTest, ElementsInAnyPlaceReadAlike) {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / i;
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  std::vector<float> scratch;
  for (size_t shift = 0; shift < 4; ++shift) {
    const std::string shifted = std::string(shift, 'x') + bytes;
    for (const size_t longest : {3, 100, 10000}) {
      const RandomPieces pieces(shifted, longest, 2);
      const ScatteredBytes scattered = pieces.bytes();
      const ArrayField array(scattered, shift, bytes.size());
      ASSERT_EQ(array.size(), bytes.size());
      for (size_t first = 0; first < values.size(); first += 37) {
        const size_t count = std::min<size_t>(50, values.size() - first);
        const std::span<const float> read = array.Read(first, count, scratch);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(read.data()) % alignof(float), 0);
        EXPECT_EQ(std::memcmp(read.data(), &values[first], count * 4), 0);
      }
    }
  }
}

TEST(ArrayFieldTest, AlignedElementsOfOnePieceAreNotCopied) {
  const std::vector<float> values(100, 1.0f);
  const std::string_view piece(reinterpret_cast<const char*>(values.data()), 400);
  const ScatteredBytes scattered(std::span(&piece, 1));
  std::vector<float> scratch;
  EXPECT_EQ(ArrayField(scattered, 0, 400).Read(10, 20, scratch).data(), &values[10]);
  EXPECT_TRUE(scratch.empty());
}

TEST(ArrayFieldTest, AnEmptyFieldHasNoElements) {
  std::vector<float> scratch;
  EXPECT_TRUE(ArrayField().Read(0, 0, scratch).empty());
  EXPECT_TRUE(ReceivedArrays().Of("").Read(0, 0, scratch).empty());
}

// What is charged for a message, and what protobuf then takes for it.
template <typename Message>
void ExpectCharged(const std::string& bytes, double most_times) {
  const std::string_view piece = bytes;
  ByteBudget budget(INT64_MAX);
  ParsingCharge charge(budget);
  Message message;
  ReceivedArrays arrays;
  ASSERT_TRUE(ReceivedArrays::Parse(ScatteredBytes({&piece, 1}), ShapeOf<Message>(), charge,
                                    message, arrays)
                  .ok());
  const auto taken = static_cast<int64_t>(message.SpaceUsedLong() - sizeof(message));
  EXPECT_GE(budget.used(), taken) << Message::descriptor()->name();
  EXPECT_LE(static_cast<double>(budget.used()), most_times * static_cast<double>(taken) + 16'384);

  // With a little less there is an error, and nothing stays charged.
  const int64_t least = std::max<int64_t>(0, taken - 1);
  ByteBudget less(least);
  {
    ParsingCharge short_charge(less);
    Message none;
    const absl::Status status = ReceivedArrays::Parse(
        ScatteredBytes({&piece, 1}), ShapeOf<Message>(), short_charge, none, arrays);
    EXPECT_EQ(status.code(),
              taken == 0 ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(less.used(), 0);
}

TEST(ReceivedArraysTest, WhatProtobufTakesIsChargedBefore) {
  constexpr int kTimes = 10'000;
  ExpectCharged<v1::EvaluateRequest>(Request().SerializeAsString(), 16);
  // Two bytes each: slices, and sequences in them, are many times as large in memory.
  const auto number = [](const auto* descriptor, const char* field) {
    return static_cast<uint32_t>(descriptor->FindFieldByName(field)->number());
  };
  const uint32_t evaluated = number(v1::EvaluateRequest::descriptor(), "slices");
  const uint32_t fetched = number(v1::FetchTopKRequest::descriptor(), "slices");
  const uint32_t released = number(v1::ReleaseRequest::descriptor(), "sequences");
  ExpectCharged<v1::EvaluateRequest>(Repeated(Field(evaluated, ""), kTimes), 16);
  ExpectCharged<v1::EvaluateRequest>(Repeated(Field(evaluated, Field(1, "")), kTimes), 16);
  ExpectCharged<v1::EvaluateRequest>(Repeated(Field(evaluated, Field(1, Field(1, "x"))), kTimes),
                                     16);
  ExpectCharged<v1::FetchTopKRequest>(Repeated(Field(fetched, ""), kTimes), 16);
  ExpectCharged<v1::ReleaseRequest>(Repeated(Field(released, ""), kTimes), 16);
  ExpectCharged<v1::ReleaseRequest>(Repeated(Field(released, Field(1, "name")), kTimes), 16);
  // What is unknown takes nothing.
  ExpectCharged<v1::ReleaseRequest>(Repeated("\x82\x7d\x02xy", kTimes), 0);
  ExpectCharged<v1::ReleaseRequest>(Repeated("\x80\x7d\x01", kTimes), 0);
  ExpectCharged<v1::CreateRunRequest>(Repeated(Field(1, "run"), kTimes), 1e9);
}

}  // namespace
}  // namespace sis
