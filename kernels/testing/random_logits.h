// Logits in every type and shape, records that go with them, and room for results. For tests.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/decide/dense/dense.h"
#include "kernels/decide/dense/dense_row.h"

namespace sis {

inline constexpr LogitType kLogitTypes[] = {LogitType::kFloat32, LogitType::kFloat16,
                                            LogitType::kBfloat16};

// The nearest float16, towards zero where it matters little; overflow gives infinity.
inline uint16_t ToFloat16(float x) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  if (std::isnan(x)) return 0x7e01;
  uint16_t low = 0;
  uint16_t high = 0x7c01;  // DecodeFloat16(low) <= |x|, below high
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (DecodeFloat16(middle) <= std::abs(x) ? low : high) = middle;
  }
  return low | sign;
}

// Logits as a trainer holds them: any type, any alignment, rows further apart than they are wide.
class LogitMatrix {
 public:
  // offset: bytes before the first row.
  LogitMatrix(LogitType type, size_t positions, int32_t width, size_t offset = 0,
              size_t padding = 0)
      : type_(type),
        width_(width),
        offset_(offset),
        stride_(width * LogitBytes(type) + padding),
        // No byte more than needed, so that a sanitizer sees a read past the end.
        bytes_(offset + (positions - 1) * stride_ + width * LogitBytes(type)) {}

  void Set(size_t position, int32_t column, float logit) {
    std::byte* target = &bytes_[offset_ + position * stride_ + column * LogitBytes(type_)];
    if (type_ == LogitType::kFloat32) {
      std::memcpy(target, &logit, 4);
    } else {
      const uint16_t half = type_ == LogitType::kFloat16
                                ? ToFloat16(logit)
                                : static_cast<uint16_t>(std::bit_cast<uint32_t>(logit) >> 16);
      std::memcpy(target, &half, 2);
    }
  }

  float Get(size_t position, int32_t column) const { return LogitAt(Row(position), column); }

  LogitRow Row(size_t position) const {
    return {type_, &bytes_[offset_ + position * stride_], width_, 0};
  }

  // The columns [begin, end).
  LogitsView Shard(int32_t begin, int32_t end) const {
    return {.type = type_,
            .data = bytes_.data() + offset_ + begin * LogitBytes(type_),
            .width = end - begin,
            .vocabulary_offset = begin,
            .row_stride_bytes = static_cast<ptrdiff_t>(stride_)};
  }
  LogitsView View() const { return Shard(0, width_); }
  int32_t width() const { return width_; }

 private:
  LogitType type_;
  int32_t width_;
  size_t offset_;
  size_t stride_;
  std::vector<std::byte> bytes_;
};

enum class Shape { kNormal, kNegative, kPeaked, kUniform, kWide, kMasked };
inline constexpr Shape kShapes[] = {Shape::kNormal,  Shape::kNegative, Shape::kPeaked,
                                    Shape::kUniform, Shape::kWide,     Shape::kMasked};

inline void Fill(LogitMatrix& matrix, size_t positions, Shape shape, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < positions; ++i) {
    const auto peak = static_cast<int32_t>(random() % matrix.width());
    for (int32_t v = 0; v < matrix.width(); ++v) {
      float logit = 3.0f * normal(random);
      if (shape == Shape::kNegative) logit -= 40.0f;
      if (shape == Shape::kPeaked) logit = v == peak ? 25.0f : logit - 5.0f;
      if (shape == Shape::kUniform) logit = 7.75f;
      if (shape == Shape::kWide) logit *= 300.0f;
      if (shape == Shape::kMasked && v != peak && random() % 4 != 0) logit = kMinusInfinity;
      matrix.Set(i, v, logit);
    }
  }
}

inline std::string Name(LogitType type) {
  return type == LogitType::kFloat32   ? "float32"
         : type == LogitType::kFloat16 ? "float16"
                                       : "bfloat16";
}

// Records for a matrix: the K most probable ids of a behaviour policy near the logits, some slots
// unused.
struct DenseRecords {
  DenseRecords(const LogitMatrix& matrix, size_t positions, int top_k, std::mt19937& random)
      : slots(top_k), sampled_log_probs(positions), ranks(positions) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < positions; ++i) {
      std::vector<double> behavior(matrix.width());
      double total = 0;
      double maximum = -HUGE_VAL;
      for (int32_t v = 0; v < matrix.width(); ++v) {
        behavior[v] = std::max(-100.0f, matrix.Get(i, v)) + 0.3f * normal(random);
        maximum = std::max(maximum, behavior[v]);
      }
      for (const double logit : behavior) total += std::exp(logit - maximum);
      for (double& logit : behavior) logit -= maximum + std::log(total);
      std::vector<int32_t> order(matrix.width());
      std::iota(order.begin(), order.end(), 0);
      const int used = std::min<int>(matrix.width(), i % 3 == 2 ? top_k / 2 : top_k);
      std::ranges::stable_sort(order, std::greater<>(),
                               [&](int32_t v) { return static_cast<float>(behavior[v]); });
      for (int slot = 0; slot < top_k; ++slot) {
        ids.push_back(slot < used ? order[slot] : -1);
        log_probs.push_back(slot < used ? static_cast<float>(behavior[order[slot]])
                                        : kMinusInfinity);
      }
      // Mostly a token of the set, sometimes one outside.
      const size_t drawn = random() % (used + 2);
      const int32_t sampled = order[std::min<size_t>(drawn, order.size() - 1)];
      sampled_ids.push_back(sampled);
      sampled_log_probs[i] = static_cast<float>(behavior[sampled]);
    }
  }

  DenseRecordView View() const { return {sampled_ids, ids, log_probs}; }

  int slots;
  std::vector<int32_t> sampled_ids;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  std::vector<float> sampled_log_probs;
  std::vector<uint8_t> ranks;
};

struct DenseResults {
  explicit DenseResults(size_t n) : sampled(n), envelopes(n), masses(n), log_sum_exps(n) {}
  DenseOutput View() { return {sampled, envelopes, masses, log_sum_exps}; }
  // Byte for byte: no NaN, and both zeros are told apart.
  bool operator==(const DenseResults& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(sampled, other.sampled) && same(envelopes, other.envelopes) &&
           same(masses, other.masses) && same(log_sum_exps, other.log_sum_exps);
  }

  std::vector<float> sampled;
  std::vector<float> envelopes;
  std::vector<float> masses;
  std::vector<double> log_sum_exps;
};

struct PartialStorage {
  PartialStorage(size_t n, int slots) : sums(n), slot_logits(n * slots), sampled(n) {
    partial = {.exp_sums = sums, .slot_logits = slot_logits, .sampled_logits = sampled};
  }
  std::vector<ExpSum> sums;
  std::vector<float> slot_logits;
  std::vector<float> sampled;
  DensePartial partial;
};

}  // namespace sis
