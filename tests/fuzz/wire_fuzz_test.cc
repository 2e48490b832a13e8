// Any bytes, cut into pieces anywhere, as a message with arrays: read as protobuf reads them, or
// refused where protobuf refuses them.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/testing/resolve_arrays.h"
#include "server/testing/same_append.h"
#include "server/wire/append_request.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace {

// In memory of their own, so that a sanitizer sees their ends.
std::vector<std::string> Pieces(std::string_view input, size_t piece_bytes) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < input.size(); i += piece_bytes) {
    pieces.emplace_back(input.substr(i, piece_bytes));
  }
  return pieces;
}

void CompareAppend(std::string_view input, size_t piece_bytes) {
  sis::v1::AppendRequest expected;
  const bool valid = expected.ParseFromArray(input.data(), static_cast<int>(input.size()));
  const std::vector<std::string> pieces = Pieces(input, piece_bytes);
  sis::ByteBudget budget(INT64_MAX);
  sis::ParsingCharge charge(budget);
  sis::ReceivedAppend received;
  const absl::Status status = received.Parse(
      sis::ScatteredBytes(std::vector<std::string_view>(pieces.begin(), pieces.end())), charge);
  if (status.ok() != valid) std::abort();
  if (valid && !sis::SameRequest(received, expected)) std::abort();
}

template <typename Message>
void CompareWithProtobuf(std::string_view input, size_t piece_bytes) {
  Message expected;
  const bool valid = expected.ParseFromArray(input.data(), static_cast<int>(input.size()));

  const std::vector<std::string> pieces = Pieces(input, piece_bytes);
  const sis::ScatteredBytes bytes(std::vector<std::string_view>(pieces.begin(), pieces.end()));
  Message message;
  sis::ReceivedArrays arrays;
  sis::ByteBudget budget(INT64_MAX);
  sis::ParsingCharge charge(budget);
  const absl::Status status =
      sis::ReceivedArrays::Parse(bytes, sis::ShapeOf<Message>(), charge, message, arrays);
  if (status.ok() != valid) std::abort();
  if (!valid) return;
  expected.DiscardUnknownFields();
  sis::ResolveArrays(arrays, message);
  if (message.SerializeAsString() != expected.SerializeAsString()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // The last byte also says where to cut.
  const size_t piece_bytes = 1 + data[size - 1] % 64;
  CompareWithProtobuf<sis::v1::EvaluateRequest>(input, piece_bytes);
  CompareAppend(input, piece_bytes);
  return 0;
}
