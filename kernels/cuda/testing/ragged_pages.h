// Pages of sets as long as their mass, for reports.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kernels/decide/backend.h"
#include "kernels/page/encoded_page.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {

// Random positions of at most `slots` slots, of which as many are used as Qwen3-4B's recorded sets
// take to cover 0.97 (tests/bench/trainer_path/batch.py): mostly one, seldom many.
inline Positions PositionsCutToMass(std::mt19937_64& random, int slots, size_t n) {
  Positions positions = RandomPositions(random, slots, n);
  const auto k = static_cast<size_t>(slots);
  for (size_t i = 0; i < n; ++i) {
    const bool one = std::uniform_real_distribution<double>()(random) < 0.5;
    const double more = 2 + std::exp(std::normal_distribution<double>(0.5, 1.6)(random));
    const auto used = static_cast<ptrdiff_t>(one ? 1 : std::min<double>(slots, std::floor(more)));
    const auto row = static_cast<ptrdiff_t>(i * k);
    std::fill(positions.ids.begin() + row + used,
              positions.ids.begin() + row + static_cast<ptrdiff_t>(k), -1);
    std::fill(positions.behavior_log_probs.begin() + row + used,
              positions.behavior_log_probs.begin() + row + static_cast<ptrdiff_t>(k),
              kMinusInfinity);
    if (positions.sampled_ranks[i] >= used) positions.sampled_ranks[i] = kRankOutside;
  }
  return positions;
}

// In 12 bits.
class RaggedPage {
 public:
  explicit RaggedPage(const Positions& positions) {
    const PageHeader header = HeaderOf({.encoding = LogProbEncoding::kFixed12,
                                        .slots = positions.slots,
                                        .vocabulary_size = kPairVocabularySize,
                                        .first_position = 0,
                                        .positions = static_cast<uint32_t>(positions.size()),
                                        .version = PageVersion::kRagged},
                                       positions.records(), positions.sampled_ranks);
    bytes_.resize(PageBytes(header));
    EncodePage(header, positions.records(), positions.sampled_ranks, bytes_);
    header_ = OpenPage(bytes_)->header;
  }

  size_t used_slots() const { return header_.used_slots; }

  // As the server reads it for a call; counts are unpacked into `unpacked`, which the view refers
  // to.
  BehaviorView View(UnpackedCounts& unpacked) const {
    const PageView page = ViewPage(header_, bytes_);
    UnpackCounts(page, unpacked);
    return {.log_probs = {},
            .sampled_log_probs = {reinterpret_cast<const float*>(page.sampled_log_probs.data()),
                                  header_.positions},
            .sampled_ranks = unpacked.ranks,
            .ragged_log_probs = RaggedLogProbsOf(page, unpacked, 0, header_.positions)};
  }

 private:
  std::vector<std::byte> bytes_;
  PageHeader header_;
};

}  // namespace sis::cuda
