#include "tests/bench/read_bandwidth.h"

#include <time.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/read_bandwidth.cc"  // NOLINT
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sis::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

uint64_t SumBytes(const std::byte* bytes, size_t size) {
  const hn::CappedTag<uint64_t, 16> d;
  const size_t lanes = hn::Lanes(d);
  const auto* words = reinterpret_cast<const uint64_t*>(bytes);
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  for (size_t i = 0; i < size / 8; i += 4 * lanes) {
    // Without it the hardware prefetcher alone would be measured.
    hwy::Prefetch(bytes + 8 * i + 4096);
    sum0 = hn::Add(sum0, hn::LoadU(d, words + i));
    sum1 = hn::Add(sum1, hn::LoadU(d, words + i + lanes));
    sum2 = hn::Add(sum2, hn::LoadU(d, words + i + 2 * lanes));
    sum3 = hn::Add(sum3, hn::LoadU(d, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

}  // namespace sis::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {

HWY_EXPORT(SumBytes);

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Spread SpreadOf(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

uint64_t ReadAll(std::span<const std::byte> bytes) {
  return HWY_DYNAMIC_DISPATCH(SumBytes)(bytes.data(), bytes.size());
}

}  // namespace sis
#endif
