#include "client/study/layers.h"

#include <algorithm>

#include "kernels/numerics/simd_targets.h"
// Only those with a fused multiplication and addition: the BUILD file makes AVX2 the least of x86.
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (SIS_VECTORS_WITHOUT_SIZE | SIS_VARIANTS_OF_AVX3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "client/study/layers.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/numerics/exp_sum.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis::study {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using sis::HWY_NAMESPACE::Constant;
using sis::HWY_NAMESPACE::ExpAtMost88;
using sis::HWY_NAMESPACE::Floats;
using sis::HWY_NAMESPACE::FloatTag;
using sis::HWY_NAMESPACE::kLanes;
using sis::HWY_NAMESPACE::LimitTo88;
using sis::HWY_NAMESPACE::LoadFloats;

// GELU(x) = x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
constexpr float kGeluScale = 1.5957691216f;
constexpr float kGeluCube = 0.044715f;

HWY_INLINE void Store(Floats values, float* to) { hn::StoreU(values, FloatTag(), to); }

// Four lanes on every machine: what is summed in them has the same order everywhere.
using Quad = hn::FixedTag<float, 4>;
using Quads = hn::Vec<Quad>;

HWY_INLINE Quads LoadQuad(const float* values) { return hn::LoadU(Quad(), values); }

HWY_INLINE float SumOfQuad(Quads quad) {
  HWY_ALIGN float lanes[4];
  hn::Store(quad, Quad(), lanes);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// Of heads.
HWY_INLINE float Dot(const float* a, const float* b) {
  static_assert(kHeadWidth == 16);
  const Quads even = hn::MulAdd(LoadQuad(a + 8), LoadQuad(b + 8), LoadQuad(a) * LoadQuad(b));
  const Quads odd =
      hn::MulAdd(LoadQuad(a + 12), LoadQuad(b + 12), LoadQuad(a + 4) * LoadQuad(b + 4));
  return SumOfQuad(even + odd);
}

// to += factor * values, for a head.
HWY_INLINE void AddScaled(float factor, const float* values, float* to) {
  for (size_t i = 0; i < kHeadWidth; i += kLanes) {
    Store(hn::MulAdd(Constant(factor), LoadFloats(values + i), LoadFloats(to + i)), to + i);
  }
}

// Writes e^(row - largest), and returns its sum. count is a multiple of kPadding.
HWY_INLINE float SumOfExponentials(const float* row, float largest, size_t count, float* to) {
  for (size_t i = 0; i < count; i += kLanes) {
    Store(ExpAtMost88(LoadFloats(row + i) - Constant(largest)), to + i);
  }
  Quads sum = hn::Zero(Quad());
  for (size_t i = 0; i < count; i += 4) sum = sum + LoadQuad(to + i);
  return SumOfQuad(sum);
}

// A block of kRows x (kVectors * kLanes) of the product, in registers.
template <size_t kRows, size_t kVectors>
HWY_INLINE void MultiplyBlock(size_t inner, Matrix a, const float* HWY_RESTRICT b, size_t columns,
                              float* HWY_RESTRICT c, bool add) {
  Floats sums[kRows][kVectors];
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = add ? LoadFloats(c + r * columns + v * kLanes) : hn::Zero(FloatTag());
    }
  }
  for (size_t k = 0; k < inner; ++k) {
    Floats row[kVectors];
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVectors; ++v) row[v] = LoadFloats(b + k * columns + v * kLanes);
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) {
      const Floats factor = Constant(a.values[r * a.row + k * a.column]);
      HWY_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(factor, row[v], sums[r][v]);
    }
  }
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVectors; ++v) Store(sums[r][v], c + r * columns + v * kLanes);
  }
}

template <size_t kVectors>
HWY_INLINE void MultiplyColumns(size_t rows, size_t inner, Matrix a, const float* b, size_t columns,
                                float* c, bool add) {
  size_t r = 0;
  const auto from = [&](size_t row) HWY_ATTR {
    return Matrix{a.values + row * a.row, a.row, a.column};
  };
  for (; r + 6 <= rows; r += 6) {
    MultiplyBlock<6, kVectors>(inner, from(r), b, columns, c + r * columns, add);
  }
  if (r + 4 <= rows) {
    MultiplyBlock<4, kVectors>(inner, from(r), b, columns, c + r * columns, add);
    r += 4;
  }
  for (; r < rows; ++r) {
    MultiplyBlock<1, kVectors>(inner, from(r), b, columns, c + r * columns, add);
  }
}

void Multiply(size_t rows, size_t columns, size_t inner, Matrix a, const float* b, float* c,
              bool add) {
  // As many vectors side by side as the machine has registers for.
  constexpr size_t kWide = kLanes == 16 ? 4 : 2;
  size_t column = 0;
  for (; column + kWide * kLanes <= columns; column += kWide * kLanes) {
    MultiplyColumns<kWide>(rows, inner, a, b + column, columns, c + column, add);
  }
  for (; column < columns; column += kLanes) {
    MultiplyColumns<1>(rows, inner, a, b + column, columns, c + column, add);
  }
}

void AddBias(size_t rows, size_t columns, const float* bias, float* values) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < columns; i += kLanes) {
      float* at = values + r * columns + i;
      Store(LoadFloats(at) + LoadFloats(bias + i), at);
    }
  }
}

void AddColumnSums(size_t rows, size_t columns, const float* values, float* sum) {
  for (size_t i = 0; i < columns; i += kLanes) {
    Floats total = hn::Zero(FloatTag());
    for (size_t r = 0; r < rows; ++r) total = total + LoadFloats(values + r * columns + i);
    Store(LoadFloats(sum + i) + total, sum + i);
  }
}

void Normalize(size_t rows, size_t width, const float* x, const float* gain_and_bias,
               float* normalized, float* inverse_deviations, float* y) {
  constexpr float kSmallestVariance = 1e-5f;
  const float share = 1.0f / static_cast<float>(width);
  for (size_t r = 0; r < rows; ++r) {
    const float* row = x + r * width;
    Quads sum = hn::Zero(Quad());
    for (size_t i = 0; i < width; i += 4) sum = sum + LoadQuad(row + i);
    const float mean = SumOfQuad(sum) * share;
    Quads squares = hn::Zero(Quad());
    for (size_t i = 0; i < width; i += 4) {
      const Quads difference = LoadQuad(row + i) - hn::Set(Quad(), mean);
      squares = hn::MulAdd(difference, difference, squares);
    }
    const float variance = SumOfQuad(squares) * share;
    inverse_deviations[r] = 1.0f / __builtin_sqrtf(variance + kSmallestVariance);
    for (size_t i = 0; i < width; i += kLanes) {
      const Floats unit = (LoadFloats(row + i) - Constant(mean)) * Constant(inverse_deviations[r]);
      Store(unit, normalized + r * width + i);
      Store(hn::MulAdd(unit, LoadFloats(gain_and_bias + i), LoadFloats(gain_and_bias + width + i)),
            y + r * width + i);
    }
  }
}

void NormalizeBackward(size_t rows, size_t width, const float* d_y, const float* gain_and_bias,
                       const float* normalized, const float* inverse_deviations,
                       float* d_gain_and_bias, float* d_x, bool add) {
  const float share = 1.0f / static_cast<float>(width);
  for (size_t r = 0; r < rows; ++r) {
    const float* d = d_y + r * width;
    const float* unit = normalized + r * width;
    Quads sum = hn::Zero(Quad());
    Quads product_sum = hn::Zero(Quad());
    for (size_t i = 0; i < width; i += 4) {
      const Quads d_unit = LoadQuad(d + i) * LoadQuad(gain_and_bias + i);
      sum = sum + d_unit;
      product_sum = hn::MulAdd(d_unit, LoadQuad(unit + i), product_sum);
    }
    const Floats mean = Constant(SumOfQuad(sum) * share);
    const Floats slope = Constant(SumOfQuad(product_sum) * share);
    const Floats inverse = Constant(inverse_deviations[r]);
    for (size_t i = 0; i < width; i += kLanes) {
      const Floats d_row = LoadFloats(d + i);
      const Floats unit_row = LoadFloats(unit + i);
      float* d_gain = d_gain_and_bias + i;
      Store(hn::MulAdd(d_row, unit_row, LoadFloats(d_gain)), d_gain);
      Store(LoadFloats(d_gain + width) + d_row, d_gain + width);
      const Floats d_unit = d_row * LoadFloats(gain_and_bias + i);
      const Floats change = hn::NegMulAdd(unit_row, slope, d_unit - mean) * inverse;
      float* to = d_x + r * width + i;
      Store(add ? LoadFloats(to) + change : change, to);
    }
  }
}

void Gelu(size_t count, const float* x, float* sigmoids, float* y) {
  for (size_t i = 0; i < count; i += kLanes) {
    const Floats u = LoadFloats(x + i);
    const Floats argument = (u + u * u * u * Constant(kGeluCube)) * Constant(-kGeluScale);
    const Floats sigmoid = Constant(1.0f) / (Constant(1.0f) + ExpAtMost88(LimitTo88(argument)));
    Store(sigmoid, sigmoids + i);
    Store(u * sigmoid, y + i);
  }
}

void GeluBackward(size_t count, const float* x, const float* sigmoids, float* d_y) {
  for (size_t i = 0; i < count; i += kLanes) {
    const Floats u = LoadFloats(x + i);
    const Floats s = LoadFloats(sigmoids + i);
    const Floats d_argument =
        hn::MulAdd(u * u, Constant(3.0f * kGeluCube), Constant(1.0f)) * Constant(kGeluScale);
    const Floats d_sigmoid = s * (Constant(1.0f) - s) * d_argument;
    Store(LoadFloats(d_y + i) * hn::MulAdd(u, d_sigmoid, s), d_y + i);
  }
}

constexpr float kQueryScale = 0.25f;  // 1 / sqrt(kHeadWidth)

void Attend(size_t width, size_t keys, size_t padded_keys, const float* query,
            const float* keys_and_values, size_t stride, float* weights, float* output) {
  for (size_t head = 0; head < width / kHeadWidth; ++head) {
    const float* key = keys_and_values + head * kHeadWidth;
    const float* value = key + width;
    float* row = weights + head * padded_keys;
    float largest = -3e38f;
    for (size_t j = 0; j < keys; ++j) {
      row[j] = Dot(query + head * kHeadWidth, key + j * stride) * kQueryScale;
      largest = std::max(largest, row[j]);
    }
    const size_t end = Padded(keys);
    std::fill(row + keys, row + end, -3e38f);
    const float inverse = 1.0f / SumOfExponentials(row, largest, end, row);
    for (size_t j = 0; j < end; j += kLanes) {
      Store(LoadFloats(row + j) * Constant(inverse), row + j);
    }
    for (size_t i = 0; i < kHeadWidth; i += kLanes) {
      Floats mean = hn::Zero(FloatTag());
      for (size_t j = 0; j < keys; ++j) {
        mean = hn::MulAdd(Constant(row[j]), LoadFloats(value + j * stride + i), mean);
      }
      Store(mean, output + head * kHeadWidth + i);
    }
  }
}

void AttendBackward(size_t width, size_t keys, size_t padded_keys, const float* query,
                    const float* keys_and_values, size_t stride, const float* weights,
                    const float* d_output, float* d_query, float* d_keys_and_values) {
  constexpr size_t kMostKeys = 256;
  float d_weights[kMostKeys];
  std::fill_n(d_query, width, 0.0f);
  for (size_t head = 0; head < width / kHeadWidth; ++head) {
    const size_t at = head * kHeadWidth;
    const float* row = weights + head * padded_keys;
    float mean = 0.0f;
    for (size_t j = 0; j < keys; ++j) {
      d_weights[j] = Dot(d_output + at, keys_and_values + j * stride + width + at);
      mean += d_weights[j] * row[j];
      AddScaled(row[j], d_output + at, d_keys_and_values + j * stride + width + at);
    }
    for (size_t j = 0; j < keys; ++j) {
      const float d_score = row[j] * (d_weights[j] - mean) * kQueryScale;
      AddScaled(d_score, keys_and_values + j * stride + at, d_query + at);
      AddScaled(d_score, query + at, d_keys_and_values + j * stride + at);
    }
  }
}

void LogSoftmax(size_t rows, size_t columns, size_t stride, float* logits, float* probabilities) {
  for (size_t r = 0; r < rows; ++r) {
    float* row = logits + r * stride;
    float* probability = probabilities + r * stride;
    const float largest = *std::max_element(row, row + columns);
    std::fill(row + columns, row + stride, kMinusInfinity);
    const float sum = SumOfExponentials(row, largest, stride, probability);
    const Floats log_sum = Constant(largest + static_cast<float>(Log64(sum)));
    for (size_t i = 0; i < stride; i += kLanes) {
      // Rounding could leave a little more than 0.
      const Floats log_prob = hn::Min(LoadFloats(row + i) - log_sum, hn::Zero(FloatTag()));
      Store(log_prob, row + i);
      Store(ExpAtMost88(log_prob), probability + i);
    }
  }
}

void ApplyAdam(const AdamStep& step, size_t count, const float* gradients, float* first_moments,
               float* second_moments, float* values) {
  constexpr float kEpsilon = 1e-8f;
  for (size_t i = 0; i < count; i += kLanes) {
    const Floats gradient = LoadFloats(gradients + i) * Constant(step.scale);
    const Floats first = hn::MulAdd(LoadFloats(first_moments + i), Constant(step.first_decay),
                                    gradient * Constant(1.0f - step.first_decay));
    const Floats second = hn::MulAdd(LoadFloats(second_moments + i), Constant(step.second_decay),
                                     gradient * gradient * Constant(1.0f - step.second_decay));
    Store(first, first_moments + i);
    Store(second, second_moments + i);
    const Floats deviation =
        hn::Sqrt(second * Constant(step.second_correction)) + Constant(kEpsilon);
    const Floats kept = LoadFloats(values + i) * Constant(step.keep);
    Store(hn::NegMulAdd(Constant(step.step), first / deviation, kept), values + i);
  }
}

const LayerOperations* ListOperations() {
  static constexpr LayerOperations kOperations = {
      Multiply,     AddBias, AddColumnSums,  Normalize,  NormalizeBackward, Gelu,
      GeluBackward, Attend,  AttendBackward, LogSoftmax, ApplyAdam};
  return &kOperations;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis::study
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis::study {

HWY_EXPORT(ListOperations);

const LayerOperations& BestOperations() { return *HWY_DYNAMIC_DISPATCH(ListOperations)(); }

}  // namespace sis::study
#endif
