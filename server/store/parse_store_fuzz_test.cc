// Any bytes as a --store: a store, or InvalidArgument. A list of memcached's nodes is one only if
// each node is, and none is named twice.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/store/parse_store.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

bool IsStore(const std::string& description) {
  const absl::Status status = sis::CheckStore(description);
  Require(status.ok() || (absl::IsInvalidArgument(status) && !status.message().empty()));
  return status.ok();
}

void CheckNodes(absl::string_view list) {
  std::vector<std::string> nodes = absl::StrSplit(list, ',');
  const auto is_store = [&] {
    return IsStore(absl::StrCat("memcached:", absl::StrJoin(nodes, ",")));
  };
  const bool all = is_store();
  for (const std::string& node : nodes) {
    if (all) Require(IsStore(absl::StrCat("memcached:", node)));
  }
  std::vector<std::string> reversed(nodes.rbegin(), nodes.rend());
  nodes.swap(reversed);
  Require(is_store() == all);
  nodes.push_back(nodes.front());
  Require(!is_store());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string description(reinterpret_cast<const char*>(data), size);
  const bool is_store = IsStore(description);
  absl::string_view list = description;
  if (absl::ConsumePrefix(&list, "memcached:")) {
    CheckNodes(list);
  } else if (absl::StartsWith(list, "rocksdb:")) {
    // The part behind '?' is none of the folder's name.
    Require(!is_store || !absl::StrContains(absl::StripSuffix(list, "?sync=1"), '?'));
  } else {
    Require(is_store == (description == "memory"));
  }
  return 0;
}
