// Any bytes, cut into pieces anywhere, as a message of a FetchTopK stream: read in place as
// protobuf reads them, or refused where protobuf refuses them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "client/types/fetched_message.h"

namespace sis {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

grpc::ByteBuffer Pieces(std::string_view input, size_t piece_bytes) {
  std::vector<grpc::Slice> pieces;
  for (size_t i = 0; i < input.size(); i += piece_bytes) {
    pieces.emplace_back(input.data() + i, std::min(piece_bytes, input.size() - i));
  }
  return {pieces.data(), pieces.size()};
}

void RequireBytes(const FetchedChunk& chunk, const FetchedChunk::ByteRange& range,
                  const std::string& expected) {
  Require(static_cast<size_t>(range.size) == expected.size());
  std::string bytes(expected.size(), '\0');
  chunk.Copy(range, reinterpret_cast<std::byte*>(bytes.data()));
  Require(bytes == expected);
}

void RequireChunk(const FetchedChunk& chunk, const v1::FetchTopKChunk& expected) {
  Require(chunk.slice == expected.slice());
  Require(chunk.first_position == expected.first_position());
  Require(chunk.length == expected.length());
  RequireBytes(chunk, chunk.arrays[FetchedChunk::kSampledIds], expected.sampled_ids());
  RequireBytes(chunk, chunk.arrays[FetchedChunk::kSampledLogProbs], expected.sampled_log_probs());
  RequireBytes(chunk, chunk.arrays[FetchedChunk::kTopKIds], expected.top_k_ids());
  RequireBytes(chunk, chunk.arrays[FetchedChunk::kTopKLogProbs], expected.top_k_log_probs());
  RequireBytes(chunk, chunk.arrays[FetchedChunk::kTopKCounts], expected.top_k_counts());
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // The last byte also says where to cut.
  const auto message = sis::ParseFetched(sis::Pieces(input, 1 + data[size - 1] % 64));
  sis::v1::FetchTopKResponse expected;
  const bool valid = expected.ParseFromArray(data, static_cast<int>(size));
  sis::Require(message.ok() == valid);
  if (!valid) return 0;
  const auto* header = std::get_if<sis::v1::FetchTopKHeader>(&*message);
  sis::Require((header != nullptr) == expected.has_header());
  if (header != nullptr) {
    sis::Require(header->SerializeAsString() == expected.header().SerializeAsString());
  } else {
    sis::RequireChunk(std::get<sis::FetchedChunk>(*message), expected.chunk());
  }
  return 0;
}
