#include "server/tracing/traceparent.h"

#include <cstddef>

namespace sis {
namespace {

// version-trace_id-parent_id-flags
constexpr size_t kTraceId = 3;
constexpr size_t kParentId = 36;
constexpr size_t kFlags = 53;
constexpr size_t kLength = 55;

bool IsHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}
bool IsZero(absl::string_view text) { return text.find_first_not_of('0') == text.npos; }

}  // namespace

std::optional<TraceParent> ParseTraceParent(absl::string_view header) {
  if (header.size() < kLength) return std::nullopt;
  const absl::string_view version = header.substr(0, 2);
  const absl::string_view trace_id = header.substr(kTraceId, 32);
  const absl::string_view parent_id = header.substr(kParentId, 16);
  const absl::string_view flags = header.substr(kFlags, 2);
  for (const absl::string_view field : {version, trace_id, parent_id, flags}) {
    if (!IsHex(field)) return std::nullopt;
  }
  for (const size_t dash : {kTraceId - 1, kParentId - 1, kFlags - 1}) {
    if (header[dash] != '-') return std::nullopt;
  }
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return std::nullopt;
  if (version == "ff" || IsZero(trace_id) || IsZero(parent_id)) return std::nullopt;
  // The lowest bit of the last digit.
  const bool sampled = absl::string_view("13579bdf").find(flags[1]) != flags.npos;
  return TraceParent{std::string(trace_id), std::string(parent_id), sampled};
}

}  // namespace sis
