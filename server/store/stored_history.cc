#include "server/store/stored_history.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace sis {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kVersion = 1;

// No training gets there, and all stretches together stay within their numbers.
constexpr int64_t kMostCount = int64_t{1} << 53;
constexpr double kMostSum = 1e300;

// All numbers of a stretch, in the order of the format.
template <typename Stretch, typename Visit>
void VisitNumbers(Stretch& stretch, const Visit& visit) {
  visit(stretch.first_draw);
  visit(stretch.last_draw);
  visit(stretch.draws);
  visit(stretch.begun);
  visit(stretch.ended);
  visit(stretch.sequences);
  visit(stretch.uncounted);
  LongSums::ForEachField(visit, stretch.sums);
  for (const MissingReason reason : kMissingReasons) {
    visit(stretch.missing[static_cast<size_t>(reason)]);
  }
  for (auto* totals : {&stretch.plain, &stretch.clipped, &stretch.applied}) {
    CorrectionTotals::ForEachField(visit, *totals);
  }
}

constexpr size_t kNumbers = 7 + 14 + kMissingReasons.size() + 3 * 7;
constexpr size_t kStretchBytes = kNumbers * sizeof(uint64_t);

uint64_t BitsOf(uint64_t draw) { return draw; }
uint64_t BitsOf(int64_t count) { return static_cast<uint64_t>(count); }
uint64_t BitsOf(double sum) { return std::bit_cast<uint64_t>(sum); }
uint64_t BitsOf(absl::Time time) { return BitsOf(absl::ToUnixNanos(time)); }

// Whether the number can be one of a stretch.
bool Take(uint64_t bits, uint64_t& draw) {
  draw = bits;
  return true;
}
bool Take(uint64_t bits, int64_t& count) {
  count = static_cast<int64_t>(bits);
  return count >= 0 && count <= kMostCount;
}
bool Take(uint64_t bits, double& sum) {
  sum = std::bit_cast<double>(bits);
  return std::abs(sum) <= kMostSum;
}
bool Take(uint64_t bits, absl::Time& time) {
  time = absl::FromUnixNanos(static_cast<int64_t>(bits));
  return true;
}

}  // namespace

std::string EncodeHistory(const StepHistory& history) {
  std::string payload(1, kVersion);
  payload.reserve(1 + history.stretches().size() * kStretchBytes);
  for (const DrawStretch& stretch : history.stretches()) {
    VisitNumbers(stretch, [&](const auto& number) {
      const uint64_t bits = BitsOf(number);
      char bytes[sizeof(bits)];
      std::memcpy(bytes, &bits, sizeof(bits));
      payload.append(bytes, sizeof(bits));
    });
  }
  return payload;
}

absl::StatusOr<StepHistory> ParseHistory(std::string_view payload) {
  const absl::Status corrupt =
      absl::DataLossError(absl::StrCat("no history: a payload of ", payload.size(), " bytes"));
  if (payload.empty() || payload[0] != kVersion) return corrupt;
  payload.remove_prefix(1);
  if (payload.size() % kStretchBytes != 0) return corrupt;
  if (payload.size() / kStretchBytes > StepHistory::kMostStretches) return corrupt;
  StepHistory history;
  while (!payload.empty()) {
    DrawStretch stretch;
    bool valid = true;
    VisitNumbers(stretch, [&](auto& number) {
      uint64_t bits;
      std::memcpy(&bits, payload.data(), sizeof(bits));
      payload.remove_prefix(sizeof(bits));
      valid = Take(bits, number) && valid;
    });
    if (!valid || stretch.draws == 0 || stretch.ended < stretch.begun) return corrupt;
    history.Add(stretch);
  }
  return history;
}

}  // namespace sis
