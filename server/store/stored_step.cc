#include "server/store/stored_step.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace sis {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kVersion = 1;

// Appends a structure that consists of 64-bit integers only.
template <typename T>
void Append(const T& integers, std::string& payload) {
  static_assert(std::has_unique_object_representations_v<T> && sizeof(T) % sizeof(int64_t) == 0);
  payload.append(reinterpret_cast<const char*>(&integers), sizeof(integers));
}

// Returns false if the payload is too short.
template <typename T>
bool Take(std::string_view& payload, T& integers) {
  static_assert(std::has_unique_object_representations_v<T> && sizeof(T) % sizeof(int64_t) == 0);
  if (payload.size() < sizeof(integers)) return false;
  std::memcpy(&integers, payload.data(), sizeof(integers));
  payload.remove_prefix(sizeof(integers));
  return true;
}

// Calls `visit` with all fields of fixed size, in the order of the format. `visit` returns false to
// stop.
template <typename Step, typename Visit>
bool VisitSums(Step& step, const Visit& visit) {
  auto& evaluated = step.evaluated;
  return visit(step.draw) && visit(step.number) && visit(step.sequences) && visit(step.uncounted) &&
         visit(evaluated.sums) && visit(evaluated.statistics) && visit(evaluated.ages) &&
         visit(evaluated.missing);
}

bool Take(std::string_view& payload, StepLedger::Step& step) {
  int64_t begun, ended;
  uint64_t points, corrections;
  if (!Take(payload, begun) || !Take(payload, ended)) return false;
  step.begun = absl::FromUnixNanos(begun);
  step.ended = absl::FromUnixNanos(ended);
  if (!VisitSums(step, [&](auto& sums) { return Take(payload, sums); })) return false;
  // The payload's size bounds both loops.
  if (!Take(payload, points)) return false;
  for (int64_t last = 0, top_k; points > 0; --points, last = top_k) {
    PrefixPointSums point;
    if (!Take(payload, top_k) || top_k <= last || top_k > INT32_MAX) return false;
    if (!Take(payload, point)) return false;
    step.evaluated.prefix_curve[static_cast<int>(top_k)] = point;
  }
  if (!Take(payload, corrections)) return false;
  for (; corrections > 0; --corrections) {
    uint64_t size;
    if (!Take(payload, size) || size > payload.size()) return false;
    const std::string name(payload.substr(0, size));
    payload.remove_prefix(size);
    auto& observed = step.evaluated.observed;
    if (!observed.empty() && name <= observed.rbegin()->first) return false;
    if (!Take(payload, observed[name])) return false;
  }
  return payload.empty();
}

}  // namespace

std::string EncodeStep(const StepLedger::Step& step) {
  std::string payload(1, kVersion);
  Append(absl::ToUnixNanos(step.begun), payload);
  Append(absl::ToUnixNanos(step.ended), payload);
  VisitSums(step, [&](const auto& sums) {
    Append(sums, payload);
    return true;
  });
  const Evaluated& evaluated = step.evaluated;
  Append(uint64_t{evaluated.prefix_curve.size()}, payload);
  for (const auto& [top_k, point] : evaluated.prefix_curve) {
    Append(int64_t{top_k}, payload);
    Append(point, payload);
  }
  Append(uint64_t{evaluated.observed.size()}, payload);
  for (const auto& [name, sums] : evaluated.observed) {
    Append(uint64_t{name.size()}, payload);
    payload.append(name);
    Append(sums, payload);
  }
  return payload;
}

absl::StatusOr<StepLedger::Step> ParseStep(std::string_view payload) {
  // More draws than any training has.
  constexpr uint64_t kMaxNumber = uint64_t{1} << 53;
  StepLedger::Step step;
  std::string_view rest = payload;
  const bool is_version = rest.starts_with(kVersion);
  rest.remove_prefix(is_version);
  if (!is_version || !Take(rest, step) || step.ended < step.begun || step.number > kMaxNumber) {
    return absl::DataLossError(absl::StrCat("not a step: a payload of ", payload.size(), " bytes"));
  }
  return step;
}

}  // namespace sis
