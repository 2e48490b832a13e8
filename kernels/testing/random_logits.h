// Logits in every type and shape. For tests.
#pragma once

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/decide/dense/dense_row.h"

namespace sis {

inline constexpr LogitType kLogitTypes[] = {LogitType::kFloat32, LogitType::kBfloat16};

// Rows of logits as a trainer holds them: any type, any alignment.
class LogitMatrix {
 public:
  // offset: bytes before the first row.
  LogitMatrix(LogitType type, size_t positions, int32_t vocabulary_size, size_t offset = 0)
      : type_(type),
        vocabulary_size_(vocabulary_size),
        offset_(offset),
        row_bytes_(vocabulary_size * LogitBytes(type)),
        // No byte more than needed, so that a sanitizer sees a read past the end.
        bytes_(offset + positions * row_bytes_) {}

  void Set(size_t position, int32_t id, float logit) {
    std::byte* target = &bytes_[offset_ + position * row_bytes_ + id * LogitBytes(type_)];
    if (type_ == LogitType::kFloat32) {
      std::memcpy(target, &logit, 4);
    } else {
      const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(logit) >> 16);
      std::memcpy(target, &half, 2);
    }
  }

  float Get(size_t position, int32_t id) const { return LogitAt(Row(position), id); }

  LogitRow Row(size_t position) const {
    return {type_, &bytes_[offset_ + position * row_bytes_], vocabulary_size_};
  }
  int32_t vocabulary_size() const { return vocabulary_size_; }

 private:
  LogitType type_;
  int32_t vocabulary_size_;
  size_t offset_;
  size_t row_bytes_;
  std::vector<std::byte> bytes_;
};

enum class Shape { kNormal, kNegative, kPeaked, kUniform, kWide, kMasked };
inline constexpr Shape kShapes[] = {Shape::kNormal,  Shape::kNegative, Shape::kPeaked,
                                    Shape::kUniform, Shape::kWide,     Shape::kMasked};

inline void Fill(LogitMatrix& matrix, size_t positions, Shape shape, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < positions; ++i) {
    const auto peak = static_cast<int32_t>(random() % matrix.vocabulary_size());
    for (int32_t v = 0; v < matrix.vocabulary_size(); ++v) {
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
  return type == LogitType::kFloat32 ? "float32" : "bfloat16";
}

}  // namespace sis
