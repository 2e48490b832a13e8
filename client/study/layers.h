// What a transformer's layers do to rows of floats, forward and backward, on vectors.
//
// Every element is computed by the same steps whatever the width of the vectors: products of
// matrices add over the inner index in its order, sums over a row in a fixed tree. Multiplications
// and additions are fused exactly where the code says MulAdd. So the bits are the same on every
// machine with a fused multiply-add.
//
// Arrays are row-major and don't overlap unless said otherwise. "Adds" means that a result is added
// to what is there.
#pragma once

#include <cstddef>

namespace sis::study {

// Of an attention head. A model's width is a multiple of it.
inline constexpr size_t kHeadWidth = 16;
// Columns of matrices, and rows of attention weights, are padded to a multiple of this.
inline constexpr size_t kPadding = 16;

constexpr size_t Padded(size_t count) { return (count + kPadding - 1) / kPadding * kPadding; }

// A matrix or its transpose: element (i, j) is values[i * row + j * column].
struct Matrix {
  const float* values;
  size_t row;
  size_t column;
};

// One step of Adam (Kingma and Ba, 2015). scale multiplies the gradients first.
struct AdamStep {
  float scale;
  float keep;  // 1 - learning rate * weight decay
  float first_decay;
  float second_decay;
  float step;               // learning rate / (1 - first_decay^t)
  float second_correction;  // 1 / (1 - second_decay^t)
};

struct LayerOperations {
  // c [rows, columns] = a [rows, inner] * b [inner, columns], added to c if `add`. columns is a
  // multiple of kPadding, here and below.
  void (*multiply)(size_t rows, size_t columns, size_t inner, Matrix a, const float* b, float* c,
                   bool add);
  // Adds bias [columns] to every row.
  void (*add_bias)(size_t rows, size_t columns, const float* bias, float* values);
  // Adds the sum over the rows to sum [columns].
  void (*add_column_sums)(size_t rows, size_t columns, const float* values, float* sum);

  // Layer normalisation of rows of `width`, a multiple of kHeadWidth, here and below. gain_and_bias
  // [2, width]; normalized [rows, width] and inverse_deviations [rows] are kept for the backward
  // pass.
  void (*normalize)(size_t rows, size_t width, const float* x, const float* gain_and_bias,
                    float* normalized, float* inverse_deviations, float* y);
  // Adds to d_gain_and_bias [2, width]; and to d_x if `add`, else sets it.
  void (*normalize_backward)(size_t rows, size_t width, const float* d_y,
                             const float* gain_and_bias, const float* normalized,
                             const float* inverse_deviations, float* d_gain_and_bias, float* d_x,
                             bool add);

  // GELU by tanh: y = x * sigmoids. count is a multiple of kPadding, here and below.
  void (*gelu)(size_t count, const float* x, float* sigmoids, float* y);
  // d_y becomes d_x.
  void (*gelu_backward)(size_t count, const float* x, const float* sigmoids, float* d_y);

  // One query attends to `keys` keys, in each of width / kHeadWidth heads. query [width]; row j of
  // keys_and_values holds the key [width] and the value [width] of position j, rows of `stride`
  // floats. weights [heads, padded_keys], where padded_keys is a multiple of kPadding and at least
  // keys. output [width].
  void (*attend)(size_t width, size_t keys, size_t padded_keys, const float* query,
                 const float* keys_and_values, size_t stride, float* weights, float* output);
  // Sets d_query [width]; adds to d_keys_and_values, laid out as keys_and_values.
  void (*attend_backward)(size_t width, size_t keys, size_t padded_keys, const float* query,
                          const float* keys_and_values, size_t stride, const float* weights,
                          const float* d_output, float* d_query, float* d_keys_and_values);

  // Rows of `columns` logits, each of `stride` floats, a multiple of kPadding and at least columns.
  // They become log-probs, at most 0; what is behind them becomes -inf. probabilities [rows,
  // stride], 0 behind them.
  void (*log_softmax)(size_t rows, size_t columns, size_t stride, float* logits,
                      float* probabilities);

  void (*apply_adam)(const AdamStep& step, size_t count, const float* gradients,
                     float* first_moments, float* second_moments, float* values);
};

// On the widest vectors of this machine.
const LayerOperations& BestOperations();

}  // namespace sis::study
