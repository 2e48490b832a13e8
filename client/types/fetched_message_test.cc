// What is read in place is what protobuf reads, however gRPC has cut a message.
#include "client/types/fetched_message.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace sis {
namespace {

// As a received message may lie in memory.
grpc::ByteBuffer InPieces(const std::string& bytes, std::mt19937& random) {
  std::vector<grpc::Slice> pieces;
  for (size_t i = 0; i < bytes.size();) {
    const std::string piece = bytes.substr(i, random() % 40);
    pieces.emplace_back(piece);
    i += piece.size();
  }
  return {pieces.data(), pieces.size()};
}

std::string Bytes(const FetchedChunk& chunk, FetchedChunk::Array array) {
  const FetchedChunk::ByteRange& range = chunk.arrays[array];
  std::string bytes(range.size, '\0');
  chunk.Copy(range, reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

void ExpectChunk(const FetchedMessage& message, const v1::FetchTopKChunk& expected) {
  const auto* chunk = std::get_if<FetchedChunk>(&message);
  ASSERT_NE(chunk, nullptr);
  EXPECT_EQ(chunk->slice, expected.slice());
  EXPECT_EQ(chunk->first_position, expected.first_position());
  EXPECT_EQ(chunk->length, expected.length());
  EXPECT_EQ(Bytes(*chunk, FetchedChunk::kSampledIds), expected.sampled_ids());
  EXPECT_EQ(Bytes(*chunk, FetchedChunk::kSampledLogProbs), expected.sampled_log_probs());
  EXPECT_EQ(Bytes(*chunk, FetchedChunk::kTopKIds), expected.top_k_ids());
  EXPECT_EQ(Bytes(*chunk, FetchedChunk::kTopKLogProbs), expected.top_k_log_probs());
}

v1::FetchTopKResponse RandomChunk(std::mt19937& random) {
  const auto array = [&random] {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
  };
  v1::FetchTopKResponse response;
  v1::FetchTopKChunk& chunk = *response.mutable_chunk();
  chunk.set_slice(random() % 3);
  chunk.set_first_position(random());
  chunk.set_length(random() % 1000);
  chunk.set_sampled_ids(array());
  chunk.set_sampled_log_probs(array());
  chunk.set_top_k_ids(array());
  chunk.set_top_k_log_probs(array());
  return response;
}

TEST(FetchedMessageTest, ChunksAreWhatProtobufReads) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const v1::FetchTopKResponse response = RandomChunk(random);
    const auto message = ParseFetched(InPieces(response.SerializeAsString(), random));
    ASSERT_TRUE(message.ok()) << message.status();
    ExpectChunk(*message, response.chunk());
    ExpectChunk(FetchedChunk(response.chunk()), response.chunk());
  }
}

TEST(FetchedMessageTest, HeadersAndOtherMessagesAreProtobufs) {
  std::mt19937 random(2);
  v1::FetchTopKResponse response;
  response.mutable_header()->set_lease_id(5);
  response.mutable_header()->add_slices()->set_length(7);
  const auto header = ParseFetched(InPieces(response.SerializeAsString(), random));
  ASSERT_TRUE(header.ok()) << header.status();
  const auto* got = std::get_if<v1::FetchTopKHeader>(&*header);
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->SerializeAsString(), response.header().SerializeAsString());

  const auto empty = ParseFetched(InPieces("", random));
  ASSERT_TRUE(empty.ok()) << empty.status();
  ExpectChunk(*empty, {});
  EXPECT_EQ(ParseFetched(InPieces("\x0a\x7f", random)).status().code(),
            absl::StatusCode::kInternal);
}

// A tag or a size in as many bytes as a varint may have is what protobuf makes of it.
TEST(FetchedMessageTest, LongTagsAndSizesAreProtobufs) {
  std::mt19937 random(4);
  // The value, with so many bytes more than it needs.
  const auto varint = [](uint64_t value, int more) {
    std::string bytes;
    for (; value >= 128; value >>= 7) bytes.push_back(static_cast<char>(value | 128));
    bytes.push_back(static_cast<char>(value));
    for (; more > 0; --more) {
      bytes.back() = static_cast<char>(bytes.back() | 128);
      bytes.push_back('\0');
    }
    return bytes;
  };
  const auto expect_same = [&](const std::string& bytes) {
    v1::FetchTopKResponse response;
    const bool valid = response.ParseFromString(bytes);
    const auto message = ParseFetched(InPieces(bytes, random));
    ASSERT_EQ(message.ok(), valid) << message.status();
    if (valid) ExpectChunk(*message, response.chunk());
  };
  constexpr uint64_t kBeyond32Bits = uint64_t{1} << 32;
  for (int more = 0; more < 9; ++more) {
    for (const uint64_t beyond : {uint64_t{0}, kBeyond32Bits}) {
      SCOPED_TRACE(testing::Message() << more << " more, beyond " << beyond);
      const std::string array = varint(0x22, 0) + varint(4 + beyond, more) + "abcd";
      expect_same(varint(0x12, 0) + varint(array.size(), 0) + array);
      expect_same(varint(0x12, 0) + varint(2 + beyond, more) + "\x08\x01");
      expect_same(varint(0x12 + beyond, more) + varint(2, 0) + "\x08\x01");
      const std::string slice = varint(0x08 + beyond, more) + "\x01";
      expect_same(varint(0x12, 0) + varint(slice.size(), 0) + slice);
    }
  }
}

// Fields twice, unknown ones, two chunks, a chunk after a header, and what is cut or damaged.
TEST(FetchedMessageTest, MutatedMessagesToo) {
  std::mt19937 random(3);
  int parsed = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string bytes = RandomChunk(random).SerializeAsString();
    switch (random() % 4) {
      case 0:
        bytes += RandomChunk(random).SerializeAsString();
        break;
      case 1:
        bytes.resize(random() % bytes.size());
        break;
      case 2:
        bytes.insert(random() % bytes.size(), 1, static_cast<char>(random()));
        break;
      default:
        break;
    }
    for (uint32_t flips = random() % 3; flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % 24 % bytes.size()] = static_cast<char>(random());
    }
    v1::FetchTopKResponse response;
    if (!response.ParseFromString(bytes)) continue;
    ++parsed;
    const auto message = ParseFetched(InPieces(bytes, random));
    ASSERT_TRUE(message.ok()) << message.status();
    if (response.has_header()) {
      EXPECT_TRUE(std::holds_alternative<v1::FetchTopKHeader>(*message));
    } else {
      ExpectChunk(*message, response.chunk());
    }
  }
  EXPECT_GT(parsed, 5000);
}

}  // namespace
}  // namespace sis
