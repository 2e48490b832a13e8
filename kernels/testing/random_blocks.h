// Random valid records, and blocks of them, for tests: sharp and flat distributions, short and full
// sets, ties, and tails below the lowest code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/block/block.h"
#include "kernels/block/pack.h"
#include "kernels/block/record_view.h"
#include "kernels/numerics/log_prob.h"

namespace sis {

// T padded records.
struct Records {
  size_t slots;                          // K
  std::vector<int32_t> sampled_ids;      // [T]
  std::vector<float> sampled_log_probs;  // [T]
  std::vector<int32_t> ids;              // [T, K]
  std::vector<float> log_probs;          // [T, K]

  size_t size() const { return sampled_ids.size(); }
  RecordView view() const { return view(0, size()); }
  RecordView view(size_t first, size_t count) const {
    return {std::span(sampled_ids).subspan(first, count),
            std::span(sampled_log_probs).subspan(first, count),
            std::span(ids).subspan(first * slots, count * slots),
            std::span(log_probs).subspan(first * slots, count * slots)};
  }
};

// Returns random records. The vocabulary must be larger than `slots`. Sets have any number of
// slots; about a third of the sampled tokens is outside.
inline Records RandomRecords(size_t slots, int32_t vocabulary_size, size_t positions,
                             uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random);
  };
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Records records{slots, {}, {}, {}, {}};
  for (size_t i = 0; i < positions; ++i) {
    const size_t used = below(8) == 0 ? below(slots + 1) : slots;
    std::vector<double> scores(used);
    const double gap = std::exp2(uniform(-8, 4));
    double score = 0;
    for (double& each : scores) {
      if (below(6) > 0) score -= gap * -std::log(uniform(1e-9, 1));  // else a tie
      each = score;
    }
    if (below(20) == 0 && used > 0) scores.back() = -std::exp2(uniform(6, 17));
    std::ranges::sort(scores, std::greater<>());
    // The probabilities sum to 1 with a share for the rest of the vocabulary.
    double sum = below(4) == 0 ? 0 : std::exp2(uniform(-40, 2));
    for (const double each : scores) sum += std::exp(each);
    const double shift = sum > 0 ? std::log(sum) : 0;
    std::vector<float> log_probs;
    for (const double each : scores) log_probs.push_back(static_cast<float>(each - shift));
    std::vector<int32_t> ids;
    while (ids.size() <= used) {
      const auto id = static_cast<int32_t>(below(vocabulary_size));
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    const int32_t other_id = ids.back();
    ids.pop_back();
    for (size_t slot = 0; slot < used;) {  // ties go by id
      size_t end = slot + 1;
      while (end < used && log_probs[end] == log_probs[slot]) ++end;
      std::ranges::sort(std::span(ids).subspan(slot, end - slot));
      slot = end;
    }
    const bool inside = used > 0 && below(3) > 0;
    // Samples probable tokens more often.
    const size_t drawn = inside ? below(1 + below(used)) : 0;
    records.sampled_ids.push_back(inside ? ids[drawn] : other_id);
    records.sampled_log_probs.push_back(inside ? log_probs[drawn] : -12.3456789f);
    ids.resize(slots, -1);
    log_probs.resize(slots, kMinusInfinity);
    records.ids.insert(records.ids.end(), ids.begin(), ids.end());
    records.log_probs.insert(records.log_probs.end(), log_probs.begin(), log_probs.end());
  }
  return records;
}

// A block and its view.
struct RandomBlock {
  Records records;
  std::vector<std::byte> bytes;  // with kBlockSlack more
  BlockView view;

  // options.slots is ignored. Throws if the records are not valid.
  RandomBlock(Records all, const PackOptions& options)
      : records(std::move(all)),
        bytes(Pack(records, options)),
        view(Open(std::span(bytes).first(bytes.size() - kBlockSlack))) {}

  RandomBlock(const RandomBlock&) = delete;  // the view is of these bytes
  RandomBlock& operator=(const RandomBlock&) = delete;

  std::span<const std::byte> block() const { return view.bytes; }
  BlockRange range() const { return {view, 0, view.header.positions}; }

 private:
  template <typename T>
  static T Valid(absl::StatusOr<T> value) {
    if (!value.ok()) throw std::invalid_argument(std::string(value.status().message()));
    return *std::move(value);
  }
  static std::vector<std::byte> Pack(const Records& records, PackOptions options) {
    options.slots = static_cast<int>(records.slots);
    std::vector<std::byte> bytes = Valid(PackBlock(records.view(), options));
    bytes.resize(bytes.size() + kBlockSlack);
    return bytes;
  }
  static BlockView Open(std::span<const std::byte> bytes) {
    return Valid(OpenBlock(bytes, /*checksums=*/true));
  }
};

}  // namespace sis
