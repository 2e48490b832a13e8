// The backend on vectors gives the bits of the scalar one, on every target of this machine.
#include "kernels/decide/simd_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/block/block.h"
#include "kernels/decide/scalar_backend.h"

namespace sis {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Memory of exactly that size, so that sanitizers see what is read behind it.
template <typename T>
class Exactly {
 public:
  explicit Exactly(std::vector<T> values)
      : size_(values.size()), values_(std::make_unique<T[]>(values.size())) {
    std::ranges::copy(values, values_.get());
  }
  std::span<const T> span() const { return {values_.get(), size_}; }

 private:
  size_t size_;
  std::unique_ptr<T[]> values_;
};

// The block of these sections, and memory behind it that means nothing.
class Block {
 public:
  Block(BlockEncoding encoding, std::span<const uint8_t> counts, std::mt19937& random) {
    BlockHeader header{.magic = {'S', 'I', 'S', 'B'},
                       .crc32c = {},
                       .version = 1,
                       .encoding = encoding,
                       .id_bytes = 2,
                       .slots = *std::ranges::max_element(counts),
                       .vocabulary_size = 60'000,
                       .first_position = 0,
                       .positions = static_cast<uint32_t>(counts.size()),
                       .used_slots = std::accumulate(counts.begin(), counts.end(), 0u),
                       .policy_version = 1,
                       .zeros = {}};
    const BlockLayout at(header);
    bytes_.resize(at.end + kBlockSlack);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
    std::memcpy(bytes_.data(), &header, sizeof header);
    std::memcpy(bytes_.data() + at.counts, counts.data(), counts.size());
    std::exponential_distribution<float> below(0.5f);
    size_t used = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const uint8_t multiplier = random() % 2 == 0 ? 1 + random() % 4 : 1 + random() % 255;
      if (header.fixed()) Put(at.multipliers, i, multiplier);
      // Less and less probable.
      float log_prob = random() % 4 == 0 ? 0x1p-6f : -below(random);
      uint32_t code = random() % 20'000;
      for (size_t slot = 0; slot < counts[i]; ++slot, ++used) {
        if (header.fixed()) {
          Put(at.log_probs, used, static_cast<uint16_t>(code));
          code = std::min<uint32_t>(code + random() % 9000, kLowestCode16);
        } else {
          Put(at.log_probs, used, log_prob);
          log_prob -= below(random) * (random() % 50 == 0 ? 100 : 1);
        }
      }
      const bool inside = counts[i] > 0 && random() % 8 != 0;
      Put(at.ranks, i, inside ? static_cast<uint8_t>(random() % counts[i]) : kBlockRankOutside);
      Put(at.sampled_log_probs, i, -below(random));
    }
  }

  BlockView view() const {
    BlockHeader header;
    std::memcpy(&header, bytes_.data(), sizeof header);
    return BlockView(header, {bytes_.data(), bytes_.size() - kBlockSlack});
  }

 private:
  template <typename T>
  void Put(size_t section, size_t i, T value) {
    std::memcpy(bytes_.data() + section + i * sizeof(T), &value, sizeof(T));
  }

  std::vector<std::byte> bytes_;
};

// The current policy's values at a range of a block.
class Current {
 public:
  Current(const BlockRange& behavior, bool reduced, std::mt19937& random)
      : sampled_(Random(behavior.size(), random)),
        log_probs_(reduced ? std::vector<float>() : LogProbs(behavior, random)),
        log_envelopes_(reduced ? Random(behavior.size(), random) : std::vector<float>()),
        covered_masses_(reduced ? Masses(behavior.size(), random) : std::vector<float>()) {}

  CurrentView view() const {
    return {.sampled_log_probs = sampled_.span(),
            .log_probs = log_probs_.span(),
            .log_envelopes = log_envelopes_.span(),
            .covered_masses = covered_masses_.span()};
  }

 private:
  static std::vector<float> Random(size_t n, std::mt19937& random) {
    std::exponential_distribution<float> below(0.5f);
    constexpr float kSpecial[] = {0.0f, -0.0f, 0x1p-6f, -100.0f, kMinusInfinity, -0x1p-110f};
    std::vector<float> values(n);
    for (float& value : values) {
      value = random() % 20 == 0 ? kSpecial[random() % std::size(kSpecial)] : -below(random);
    }
    return values;
  }
  static std::vector<float> Masses(size_t n, std::mt19937& random) {
    std::uniform_real_distribution<float> mass(0.0f, 1.015f);
    std::vector<float> values(n);
    for (float& value : values) value = mass(random);
    return values;
  }
  // Often what the behaviour policy has, with noise, so that masses are valid.
  static std::vector<float> LogProbs(const BlockRange& behavior, std::mt19937& random) {
    constexpr float kSpecial[] = {kMinusInfinity, -87.0f, -87.00001f, -200.0f, -1e30f};
    std::normal_distribution<float> noise(0.0f, 0.3f);
    std::vector<float> values(behavior.used_slots);
    size_t used = 0;
    for (size_t i = 0; i < behavior.size(); ++i) {
      const std::span<float> slots(values.data() + used, behavior.counts[i]);
      double sum = 0;
      for (float& value : slots) {
        value = behavior.LogProbAt(i, used++) + noise(random);
        sum += std::exp(double{value});
      }
      const auto above = static_cast<float>(std::log(std::max(sum, 1.0)));
      for (float& value : slots) {
        value -= above;
        if (random() % 200 == 0) value = kSpecial[random() % std::size(kSpecial)];
      }
    }
    return values;
  }

  Exactly<float> sampled_, log_probs_, log_envelopes_, covered_masses_;
};

// All that a backend gives for ranges.
struct Results {
  std::vector<Decision> decisions;
  std::vector<float> floats[6];
  Sums sums;
  std::vector<PrefixSums> prefix_sums;

  Results(size_t n, size_t points) : decisions(n), prefix_sums(points) {
    for (auto& array : floats) array.resize(n);
  }
  // `wanted`: a bit for each of the arrays.
  OutputView View(size_t first, size_t n, uint32_t wanted) {
    const auto part = [&](size_t i) {
      return wanted >> i & 1 ? std::span(floats[i]).subspan(first, n) : std::span<float>();
    };
    return {std::span(decisions).subspan(first, n),
            part(0),
            part(1),
            part(2),
            part(3),
            part(4),
            part(5)};
  }
  bool SameAs(const Results& other) const {
    for (size_t i = 0; i < std::size(floats); ++i) {
      if (std::memcmp(floats[i].data(), other.floats[i].data(), floats[i].size() * 4) != 0) {
        return false;
      }
    }
    return decisions == other.decisions && sums == other.sums && prefix_sums == other.prefix_sums;
  }
};

struct Case {
  std::vector<Block> blocks;
  std::vector<Current> currents;
  std::vector<BlockRange> behaviors;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> first_positions;
  std::vector<int> curve;
  EvaluateParameters parameters;
  uint32_t wanted;

  explicit Case(std::mt19937& random) {
    const int slots = random() % 4 == 0 ? 1 + static_cast<int>(random() % kMaxBlockSlots)
                                        : 1 + static_cast<int>(random() % 20);
    const bool reduced = random() % 6 == 0;
    parameters = {.top_k = random() % 2 == 0 ? 1 + static_cast<int>(random() % slots)
                                             : slots + static_cast<int>(random() % 300),
                  .draw = random() * uint64_t{0x100000001},
                  .total_variation = !reduced && random() % 3 == 0};
    if (!reduced && random() % 3 == 0) {
      for (int k = 1; k <= parameters.top_k && curve.size() < kMaxPrefixPoints; ++k) {
        if (random() % 3 == 0) curve.push_back(k);
      }
      if (random() % 2 == 0 && (curve.empty() || curve.back() < parameters.top_k) &&
          curve.size() < kMaxPrefixPoints) {
        curve.push_back(parameters.top_k);
      }
    }
    parameters.prefix_curve = curve;
    wanted = random() % 2 == 0 ? 0x3f : random();
    const size_t ranges = 1 + random() % 3;
    // Ranges point to what is in them.
    blocks.reserve(ranges);
    currents.reserve(ranges);
    for (size_t s = 0; s < ranges; ++s) {
      std::vector<uint8_t> counts(1 + random() % 300);
      const auto kind = random() % 4;
      for (uint8_t& count : counts) {
        const bool whole = kind == 0 || (kind == 1 && random() % 2 == 0);
        count = static_cast<uint8_t>(whole       ? slots
                                     : kind == 2 ? random() % std::min(slots + 1, 4)
                                                 : random() % (slots + 1));
      }
      blocks.emplace_back(random() % 2 == 0 ? BlockEncoding::kFixed16 : BlockEncoding::kFloat32,
                          counts, random);
      const auto first = random() % 2 == 0 ? 0 : static_cast<uint32_t>(random() % counts.size());
      const auto count = static_cast<uint32_t>(1 + random() % (counts.size() - first));
      behaviors.emplace_back(blocks.back().view(), first, count);
      currents.emplace_back(behaviors.back(), reduced, random);
      keys.push_back(random());
      first_positions.push_back(random() % 8 == 0 ? ~uint32_t{0} - count + 1 : random() % 10'000);
    }
  }

  Results Evaluate(const Backend& backend) const {
    size_t n = 0;
    for (const BlockRange& behavior : behaviors) n += behavior.size();
    Results results(n, curve.size());
    std::vector<BackendRange> ranges;
    n = 0;
    for (size_t s = 0; s < behaviors.size(); ++s) {
      ranges.push_back({.sequence_key = keys[s],
                        .first_position = first_positions[s],
                        .behavior = behaviors[s],
                        .current = currents[s].view(),
                        .output = results.View(n, behaviors[s].size(), wanted),
                        .sums = &results.sums,
                        .prefix_sums = results.prefix_sums});
      n += behaviors[s].size();
    }
    backend.Evaluate(parameters, ranges);
    return results;
  }

  std::string Text() const {
    std::ostringstream text;
    text << behaviors.size() << " ranges, first " << behaviors[0].size() << " positions, "
         << behaviors[0].used_slots << " slots, encoding "
         << static_cast<int>(behaviors[0].encoding) << ", top_k " << parameters.top_k << ", points "
         << curve.size() << ", total variation " << parameters.total_variation;
    return text.str();
  }
};

TEST(SimdBackendTest, GivesTheBitsOfTheScalarBackend) {
  const std::vector<SimdBackend> backends = SimdBackend::ForEveryTarget();
  std::mt19937 random(7);
  int valid = 0;
  for (int round = 0; round < 1500; ++round) {
    const Case c(random);
    const Results expected = c.Evaluate(ScalarBackend());
    valid += expected.sums.invalid == 0;
    for (const SimdBackend& backend : backends) {
      const Results results = c.Evaluate(backend);
      ASSERT_EQ(results.sums.invalid, expected.sums.invalid)
          << backend.name() << ", round " << round << ": " << c.Text();
      if (expected.sums.invalid > 0) continue;
      ASSERT_TRUE(results.SameAs(expected))
          << backend.name() << ", round " << round << ": " << c.Text();
    }
  }
  EXPECT_GT(valid, 1000);
}

// Places one invalid log-prob among sets of all lengths.
TEST(SimdBackendTest, FindsEveryInvalidSlot) {
  const std::vector<SimdBackend> backends = SimdBackend::ForEveryTarget();
  constexpr float kBad[] = {kNaN,  -kNaN, 0x1.000002p-6f,
                            88.0f, 88.5f, 100.0f,
                            1e4f,  1e9f,  std::numeric_limits<float>::infinity()};
  std::mt19937 random(8);
  for (const size_t slots : {1, 3, 4, 10, 17, 100}) {
    for (const bool equal : {false, true}) {
      std::vector<uint8_t> counts(20);
      for (uint8_t& count : counts) count = equal ? slots : 1 + random() % slots;
      const Block block(BlockEncoding::kFixed16, counts, random);
      const BlockRange behavior(block.view(), 0, 20);
      const std::vector<float> sampled(20, -1.0f);
      for (size_t at = 0; at < behavior.used_slots; ++at) {
        std::vector<float> current(behavior.used_slots, -9.0f);
        current[at] = kBad[at % std::size(kBad)];
        for (const SimdBackend& backend : backends) {
          std::vector<Decision> decisions(20);
          Sums sums;
          const BackendRange range{.sequence_key = 1,
                                   .first_position = 0,
                                   .behavior = behavior,
                                   .current = {.sampled_log_probs = sampled, .log_probs = current},
                                   .output = {decisions},
                                   .sums = &sums};
          // Slots beyond top_k count too.
          backend.Evaluate({.top_k = 1 + static_cast<int>(at % slots), .draw = 1}, {&range, 1});
          ASSERT_EQ(sums.invalid, 1) << backend.name() << ", " << current[at] << " at " << at;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sis
