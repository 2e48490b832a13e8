// The messages of a FetchTopK stream, with the arrays where gRPC received them.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// A FetchTopKChunk. Keeps what it was received in.
class FetchedChunk {
 public:
  // In the order of the fields.
  enum Array { kSampledIds, kSampledLogProbs, kTopKIds, kTopKLogProbs, kTopKCounts };
  static constexpr size_t kArrays = 5;
  static constexpr std::array<const char*, kArrays> kNames = {
      "sampled_ids", "sampled_log_probs", "top_k_ids", "top_k_log_probs", "top_k_counts"};

  // One without rows.
  FetchedChunk() = default;
  // As if it had been received.
  explicit FetchedChunk(const v1::FetchTopKChunk& chunk);

  uint32_t slice = 0;
  uint32_t first_position = 0;
  uint32_t length = 0;

  // Where a field's bytes lie in what was received.
  struct ByteRange {
    int offset = 0;
    int size = 0;
  };
  std::array<ByteRange, kArrays> arrays;

  // All bytes of a range.
  void Copy(const ByteRange& range, std::byte* into) const;

 private:
  friend absl::StatusOr<std::variant<v1::FetchTopKHeader, FetchedChunk>> ParseFetched(
      grpc::ByteBuffer);

  // Reads what protobuf writes of a response with a chunk: fields that are known, and nothing else.
  // False if `bytes` are something else.
  bool ReadInPlace(grpc::ByteBuffer bytes);

  // Reading does not change it, but gRPC's reader wants it so.
  mutable grpc::ByteBuffer bytes_;
};

using FetchedMessage = std::variant<v1::FetchTopKHeader, FetchedChunk>;

// What a received FetchTopKResponse holds. Protobuf, which would copy the arrays, parses all but
// usual chunks. Internal where it can't.
absl::StatusOr<FetchedMessage> ParseFetched(grpc::ByteBuffer bytes);

}  // namespace sis
