// Any bytes as --store are a store or give InvalidArgument.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "server/store/open_store.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string description(reinterpret_cast<const char*>(data), size);
  const absl::Status status = sis::CheckStore(description);
  Require(status.ok() || (absl::IsInvalidArgument(status) && !status.message().empty()));
  if (absl::StartsWith(description, "rocksdb:")) {
    // A folder's name contains no '?'.
    Require(!status.ok() || !absl::StrContains(absl::StripSuffix(description, "?sync=1"), '?'));
  } else if (!absl::StartsWith(description, "redis")) {
    Require(status.ok() == (description == "memory"));
  }
  return 0;
}
