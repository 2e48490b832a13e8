#include "client/replicas/placement.h"

#include <algorithm>
#include <numeric>

namespace sis {
namespace {

constexpr uint64_t kFnvOffset = 0xcbf29ce484222325;

uint64_t Fnv(uint64_t hash, std::string_view bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

uint64_t Mix(uint64_t value) {
  value = (value ^ value >> 33) * 0xff51afd7ed558ccd;
  value = (value ^ value >> 33) * 0xc4ceb9fe1a85ec53;
  return value ^ value >> 33;
}

uint64_t NameHash(std::string_view name) { return Mix(Fnv(kFnvOffset, name)); }

uint64_t SequenceHash(std::string_view run_id, std::string_view sequence_id) {
  using std::string_view_literals::operator""sv;
  return Fnv(Fnv(Fnv(kFnvOffset, run_id), "\0"sv), sequence_id);
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
