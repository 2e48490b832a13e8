#include "client/replicas/placement.h"

#include <algorithm>
#include <numeric>

#include "kernels/numerics/fnv1a.h"

namespace sis {
namespace {

uint64_t Mix(uint64_t value) {
  value = (value ^ value >> 33) * 0xff51afd7ed558ccd;
  value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53;
  return value ^ value >> 33;
}

uint64_t NameHash(std::string_view name) { return Mix(ExtendFnv1a(kFnv1aOffset, name)); }

uint64_t SequenceHash(std::string_view run_id, std::string_view sequence_id) {
  return ExtendFnv1a(ExtendFnv1a(ExtendFnv1a(kFnv1aOffset, run_id), uint8_t{0}), sequence_id);
}

}  // namespace

uint64_t PlacementScore(std::string_view name, std::string_view run_id,
                        std::string_view sequence_id) {
  return Mix(SequenceHash(run_id, sequence_id) ^ NameHash(name));
}

Placement::Placement(const std::vector<std::string>& names) {
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t index) { return std::string_view(names[index]); });
  for (const size_t index : order) candidates_.push_back({NameHash(names[index]), index});
}

size_t Placement::Replica(std::string_view run_id, std::string_view sequence_id) const {
  const uint64_t sequence = SequenceHash(run_id, sequence_id);
  const auto score = [&](const Candidate& candidate) { return Mix(sequence ^ candidate.hash); };
  return std::ranges::max_element(candidates_, {}, score)->index;
}

}  // namespace sis
