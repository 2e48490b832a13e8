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

void RequireArray(const FetchedChunk& chunk, FetchedChunk::Array array,
                  const std::string& expected) {
  Require(chunk.size(array) == expected.size());
  std::string bytes(expected.size(), '\0');
  chunk.Copy(array, reinterpret_cast<std::byte*>(bytes.data()));
  Require(bytes == expected);
}

void RequireChunk(const FetchedChunk& chunk, const v1::FetchTopKChunk& expected) {
  Require(chunk.slice == expected.slice());
  Require(chunk.first_position == expected.first_position());
  Require(chunk.length == expected.length());
  RequireArray(chunk, FetchedChunk::kSampledIds, expected.sampled_ids());
  RequireArray(chunk, FetchedChunk::kSampledLogProbs, expected.sampled_log_probs());
  RequireArray(chunk, FetchedChunk::kTopKIds, expected.top_k_ids());
  RequireArray(chunk, FetchedChunk::kTopKLogProbs, expected.top_k_log_probs());
  Require(chunk.columns() == static_cast<size_t>(expected.columns_size()));
  Require(chunk.columns_with_presence() == static_cast<size_t>(expected.column_presence_size()));
  for (int i = 0; i < expected.columns_size(); ++i) {
    std::string bytes(chunk.column_size(i), '\0');
    chunk.CopyColumn(i, reinterpret_cast<std::byte*>(bytes.data()));
    Require(bytes == expected.columns(i));
  }
  for (int i = 0; i < expected.column_presence_size(); ++i) {
    std::string bytes(chunk.presence_size(i), '\0');
    chunk.CopyPresence(i, reinterpret_cast<std::byte*>(bytes.data()));
    Require(bytes == expected.column_presence(i));
  }
  RequireArray(chunk, FetchedChunk::kTopKCounts, expected.top_k_counts());
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
