// Any bytes as a traceparent: nothing, or what stands in it, which makes a valid one again.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/tracing/traceparent.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view header(reinterpret_cast<const char*>(data), size);
  const std::optional<sis::TraceParent> parent = sis::ParseTraceParent(header);
  if (!parent.has_value()) return 0;
  const std::string made = absl::StrCat(header.substr(0, 2), "-", parent->trace_id, "-",
                                        parent->parent_id, "-", header.substr(53, 2));
  Require(header.substr(0, 55) == made);
  Require(parent->trace_id != std::string(32, '0') && parent->parent_id != std::string(16, '0'));
  const std::string again = absl::StrCat("00-", parent->trace_id, "-", parent->parent_id,
                                         parent->sampled ? "-01" : "-00");
  const std::optional<sis::TraceParent> same = sis::ParseTraceParent(again);
  Require(same.has_value() && same->trace_id == parent->trace_id &&
          same->parent_id == parent->parent_id && same->sampled == parent->sampled);
  return 0;
}
