#include "client/types/fetched_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <climits>
#include <cstdlib>
#include <utility>

#include "sis/v1/ratio_service.grpc.pb.h"  // how gRPC parses answers

namespace sis {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr uint32_t VarintTag(int number) {
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_VARINT);
}

constexpr uint32_t DelimitedTag(int number) {
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

grpc::ByteBuffer ToBuffer(const v1::FetchTopKResponse& response) {
  const grpc::Slice bytes(response.SerializeAsString());
  return {&bytes, 1};
}

v1::FetchTopKResponse WithChunk(const v1::FetchTopKChunk& chunk) {
  v1::FetchTopKResponse response;
  *response.mutable_chunk() = chunk;
  return response;
}

}  // namespace

FetchedChunk::FetchedChunk(const v1::FetchTopKChunk& chunk) {
  v1::FetchTopKResponse response = WithChunk(chunk);
  response.DiscardUnknownFields();
  if (!ReadInPlace(ToBuffer(response))) std::abort();  // it reads all that protobuf writes
}

bool FetchedChunk::ReadInPlace(grpc::ByteBuffer bytes) {
  if (bytes.Length() > INT_MAX) return false;
  const int end = static_cast<int>(bytes.Length());
  grpc::ProtoBufferReader reader(&bytes);
  CodedInputStream input(&reader);
  // Tags and sizes of more bytes than they need are for protobuf, which refuses some of them. 0 for
  // such a tag.
  const auto read_tag = [&] {
    const int begin = input.CurrentPosition();
    const uint32_t tag = input.ReadTag();
    return input.CurrentPosition() == begin + 1 ? tag : 0;
  };
  // A size that isn't beyond the end.
  const auto read_size = [&](int& size) {
    const int begin = input.CurrentPosition();
    uint32_t value = 0;
    if (!input.ReadVarint32(&value)) return false;
    size = static_cast<int>(value);
    return static_cast<size_t>(input.CurrentPosition() - begin) ==
               CodedOutputStream::VarintSize32(value) &&
           value <= static_cast<uint32_t>(end - input.CurrentPosition());
  };
  const auto read_range = [&](ByteRange& range) {
    if (!read_size(range.size)) return false;
    range.offset = input.CurrentPosition();
    return input.Skip(range.size);
  };
  int chunk_size = 0;
  if (read_tag() != DelimitedTag(v1::FetchTopKResponse::kChunkFieldNumber) ||
      !read_size(chunk_size) || chunk_size != end - input.CurrentPosition()) {
    return false;
  }
  while (input.CurrentPosition() < end) {
    const uint32_t tag = read_tag();
    switch (tag) {
      case VarintTag(v1::FetchTopKChunk::kSliceFieldNumber):
        if (!input.ReadVarint32(&slice)) return false;
        break;
      case VarintTag(v1::FetchTopKChunk::kFirstPositionFieldNumber):
        if (!input.ReadVarint32(&first_position)) return false;
        break;
      case VarintTag(v1::FetchTopKChunk::kLengthFieldNumber):
        if (!input.ReadVarint32(&length)) return false;
        break;
      case DelimitedTag(v1::FetchTopKChunk::kSampledIdsFieldNumber):
      case DelimitedTag(v1::FetchTopKChunk::kSampledLogProbsFieldNumber):
      case DelimitedTag(v1::FetchTopKChunk::kTopKIdsFieldNumber):
      case DelimitedTag(v1::FetchTopKChunk::kTopKLogProbsFieldNumber):
      case DelimitedTag(v1::FetchTopKChunk::kTopKCountsFieldNumber):
        if (!read_range(arrays[WireFormatLite::GetTagFieldNumber(tag) -
                               v1::FetchTopKChunk::kSampledIdsFieldNumber])) {
          return false;
        }
        break;
      default:
        return false;
    }
  }
  bytes_.Swap(&bytes);
  return true;
}

void FetchedChunk::Copy(const ByteRange& range, std::byte* into) const {
  if (range.size == 0) return;
  grpc::ProtoBufferReader reader(&bytes_);
  CodedInputStream input(&reader);
  if (!input.Skip(range.offset) || !input.ReadRaw(into, range.size)) std::abort();  // it is there
}

absl::StatusOr<FetchedMessage> ParseFetched(grpc::ByteBuffer bytes) {
  if (FetchedChunk chunk; chunk.ReadInPlace(bytes)) return chunk;
  v1::FetchTopKResponse response;
  if (!grpc::SerializationTraits<v1::FetchTopKResponse>::Deserialize(&bytes, &response).ok()) {
    return absl::InternalError("the server sent what is no FetchTopKResponse");
  }
  if (response.has_header()) return std::move(*response.mutable_header());
  return FetchedChunk(response.chunk());
}

}  // namespace sis
