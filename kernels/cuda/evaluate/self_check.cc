#include "kernels/cuda/evaluate/self_check.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/decide/scalar_backend.h"
#include "kernels/records/encoding.h"
#include "kernels/records/packed_values.h"

namespace sis::cuda {
namespace {

constexpr size_t kPositions = 300;
constexpr int kSlots = 6;
constexpr uint32_t kFirstPosition = 5;
constexpr uint8_t kFirstLane = kFirstPosition % kGroupPositions;

// Side by side, as in a page.
struct Records {
  float log_probs[kPositions * kSlots];
  float sampled_log_probs[kPositions];
  uint16_t sampled_ranks[kPositions];
};

struct Output {
  std::vector<Decision> decisions = std::vector<Decision>(kPositions);
  std::vector<float> floats = std::vector<float>(6 * kPositions);
  Sums sums;

  OutputView view() {
    const auto part = [this](size_t i) {
      return std::span(floats).subspan(i * kPositions, kPositions);
    };
    return {decisions, part(0), part(1), part(2), part(3), part(4), part(5)};
  }
  bool operator==(const Output& other) const {
    return decisions == other.decisions && sums == other.sums &&
           std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0;
  }
};

}  // namespace

absl::Status SelfCheck(const StagedBackend& backend) {
  Records recorded;
  const std::span<float> behavior = recorded.log_probs;
  const std::span<float> behavior_sampled = recorded.sampled_log_probs;
  const std::span<uint16_t> ranks = recorded.sampled_ranks;
  std::vector<float> current(kPositions * kSlots);
  std::vector<float> current_sampled(kPositions);
  std::vector<float> envelopes(kPositions);
  std::vector<float> masses(kPositions);
  for (size_t i = 0; i < kPositions; ++i) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      // Of different exponents and bits, and in no order that matters here.
      behavior[i * kSlots + slot] = -2.0f - static_cast<float>((i * 37 + slot * 101) % 997) / 83;
      current[i * kSlots + slot] = -2.0f - static_cast<float>((i * 53 + slot * 71) % 991) / 79;
    }
    const size_t rank = i % (kSlots + 1);
    ranks[i] = rank < kSlots ? static_cast<uint16_t>(rank) : kRankOutside;
    behavior_sampled[i] = rank < kSlots ? behavior[i * kSlots + rank] : -9.0f;
    current_sampled[i] = rank < kSlots ? current[i * kSlots + rank] : -8.0f;
    envelopes[i] = static_cast<float>(i % 64) / 7;
    masses[i] = static_cast<float>(i % 100) / 101;
  }
  RowsTag tag;
  tag.Renew();
  const BehaviorView changing{behavior, behavior_sampled, ranks};
  BehaviorView fixed = changing;
  fixed.fixed_rows = {std::as_bytes(std::span(&recorded, 1)), &tag};
  const CurrentView gathered{current_sampled, current, {}, {}};
  const CurrentView reduced{current_sampled, {}, envelopes, masses};
  // Of differing length, in 12 bits.
  std::vector<uint16_t> counts;
  std::vector<uint32_t> begins = {0};
  constexpr size_t kLanes = kFirstLane + kPositions;
  for (size_t lane = 0; lane < GroupCount(kLanes) * kGroupPositions; ++lane) {
    if (lane % kGroupPositions == 0) begins.push_back(begins.back());
    counts.push_back(lane < kLanes ? static_cast<uint16_t>(lane * 5 % (kSlots + 1)) : 0);
    begins.back() += counts.back();
  }
  std::vector<uint16_t> used_ranks(ranks.begin(), ranks.end());
  for (size_t i = 0; i < kPositions; ++i) {
    if (ranks[i] >= counts[kFirstLane + i]) used_ranks[i] = kRankOutside;
  }
  std::vector<std::byte> codes(PackedValueBytes(begins.back(), kMultiplierBits));
  std::vector<std::byte> multipliers(PackedValueBytes(kLanes, kMultiplierBits));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i * 89 % 251);
  for (size_t i = 0; i < multipliers.size(); ++i) {
    multipliers[i] = static_cast<std::byte>(i * 37 % 251);
  }
  const BehaviorView ragged{.log_probs = {},
                            .sampled_log_probs = behavior_sampled,
                            .sampled_ranks = used_ranks,
                            .ragged_log_probs = {counts, begins, multipliers, codes,
                                                 LogProbEncoding::kFixed12, kFirstLane}};
  // Staged, copied to where rows stay, and read there.
  for (const auto& [records, form] :
       {std::pair(changing, gathered), std::pair(changing, reduced), std::pair(ragged, gathered),
        std::pair(fixed, gathered), std::pair(fixed, gathered), std::pair(fixed, reduced)}) {
    const EvaluateParameters parameters{.slots = kSlots, .top_k = kSlots - 1, .draw = 1};
    Output expected;
    Output output;
    Stretch stretch{.sequence_key = 0x0123456789abcdef,
                    .first_position = kFirstPosition,
                    .behavior = records,
                    .current = form,
                    .output = expected.view(),
                    .sums = &expected.sums};
    ScalarBackend().Evaluate(parameters, {&stretch, 1});
    stretch.output = output.view();
    stretch.sums = &output.sums;
    absl::Status status = backend.TryEvaluate(parameters, {&stretch, 1});
    if (!status.ok()) return status;
    if (!(output == expected)) {
      return absl::InternalError("other bytes than the scalar backend's");
    }
  }
  return absl::OkStatus();
}

}  // namespace sis::cuda
