#include "tests/bench/memory_read.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/memory_read.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

uint64_t Sum(std::span<const uint64_t> values) {
  const hn::ScalableTag<uint64_t> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  size_t i = 0;
  for (; i + 4 * lanes <= values.size(); i += 4 * lanes) {
    const uint64_t* from = values.data() + i;
    sum0 = hn::Add(sum0, hn::LoadU(d, from));
    sum1 = hn::Add(sum1, hn::LoadU(d, from + lanes));
    sum2 = hn::Add(sum2, hn::LoadU(d, from + 2 * lanes));
    sum3 = hn::Add(sum3, hn::LoadU(d, from + 3 * lanes));
  }
  const auto all = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  uint64_t total = hn::GetLane(hn::SumOfLanes(d, all));
  for (; i < values.size(); ++i) total += values[i];
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {

HWY_EXPORT(Sum);

uint64_t SumOfAll(std::span<const uint64_t> values) { return HWY_DYNAMIC_DISPATCH(Sum)(values); }

}  // namespace sis
#endif
