// What is read in place is what protobuf reads, however gRPC has cut a message.
#include "client/messages/fetched_message.h"

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
  std::string bytes(chunk.size(array), '\0');
  chunk.Copy(array, reinterpret_cast<std::byte*>(bytes.data()));
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
