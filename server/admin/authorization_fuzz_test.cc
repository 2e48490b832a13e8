// Any bytes as HTTP's Authorization: what gRPC takes as metadata, or Unauthenticated. Any password
// that can be metadata comes through.
#include <grpc/grpc.h>
#include <grpc/slice.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/admin/authorization.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

bool CanBeMetadata(const std::string& value) {
  const grpc_slice slice = grpc_slice_from_copied_buffer(value.data(), value.size());
  const bool legal = grpc_header_nonbin_value_is_legal(slice) != 0;
  grpc_slice_unref(slice);
  return legal;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<std::string> authorization = sis::AuthorizationOfCall(input);
  Require(authorization.ok() ? CanBeMetadata(*authorization)
                             : absl::IsUnauthenticated(authorization.status()));

  const absl::StatusOr<std::string> token =
      sis::AuthorizationOfCall(absl::StrCat("basic ", absl::Base64Escape("name:" + input)));
  Require(token.ok() == CanBeMetadata(input));
  if (token.ok()) Require(*token == "Bearer " + input);
  return 0;
}
