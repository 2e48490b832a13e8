#include "server/wire/received_bytes.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sis {
namespace {

// Of pieces that gRPC keeps inside the buffer itself, up to 23 bytes, and outside it.
grpc::ByteBuffer BufferOf(const std::vector<std::string>& pieces) {
  std::vector<grpc::Slice> slices(pieces.begin(), pieces.end());
  return {slices.data(), slices.size()};
}

absl::StatusOr<ScatteredBytes> Read(grpc::ByteBuffer& buffer, int64_t room = INT64_MAX) {
  ByteBudget budget(room);
  ParsingCharge charge(budget);
  return ReceivedBytes(buffer, charge);
}

std::string Copy(const ScatteredBytes& bytes) {
  std::string copy(bytes.size(), '\0');
  bytes.Copy(0, copy.size(), copy.data());
  return copy;
}

TEST(ReceivedBytesTest, TheyAreThoseOfTheBuffer) {
  const std::vector<std::vector<std::string>> messages = {
      {},
      {""},
      {"short"},
      {std::string(1000, 'a')},
      {"short", std::string(1000, 'a'), "", std::string(23, 'b'), std::string(24, 'c'), "end"},
      std::vector<std::string>(100, std::string(100, 'd')),
  };
  for (const std::vector<std::string>& pieces : messages) {
    std::string expected;
    for (const std::string& piece : pieces) expected += piece;
    grpc::ByteBuffer buffer = BufferOf(pieces);
    const absl::StatusOr<ScatteredBytes> bytes = Read(buffer);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(Copy(*bytes), expected);
  }
}

TEST(ReceivedBytesTest, TheyLieInTheBuffer) {
  int freed = 0;
  std::string memory(1000, 'a');
  grpc::ByteBuffer buffer;
  {
    const grpc::Slice slice(
        memory.data(), memory.size(), [](void* count) { ++*static_cast<int*>(count); }, &freed);
    buffer = grpc::ByteBuffer(&slice, 1);
  }
  {
    const absl::StatusOr<ScatteredBytes> bytes = Read(buffer);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(bytes->InOnePiece(0, memory.size()), memory.data());
    // What was read holds nothing: the memory goes with the buffer, neither before nor after.
    EXPECT_EQ(freed, 0);
    buffer.Clear();
    EXPECT_EQ(freed, 1);
  }
  EXPECT_EQ(freed, 1);
}

TEST(ReceivedBytesTest, AMessageInTooManyPiecesIsRefused) {
  grpc::ByteBuffer buffer = BufferOf(std::vector<std::string>(1000, std::string(24, 'x')));
  EXPECT_TRUE(absl::IsResourceExhausted(Read(buffer, 10'000).status()));
  EXPECT_TRUE(Read(buffer, 100'000).ok());
}

TEST(ReceivedBytesTest, WhatIsNoMessageIsRefused) {
  grpc::ByteBuffer none;
  EXPECT_EQ(Read(none).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sis
