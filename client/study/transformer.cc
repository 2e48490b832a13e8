#include "client/study/transformer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/study/random.h"
#include "kernels/numerics/exp32.h"

namespace sis::study {
namespace {

constexpr size_t kExpertWidth = kHidden / kExperts;
// The shares of two experts sum up to 1: doubled, a mixture is as large as a dense layer.
constexpr float kExpertScale = 2.0f;

void Resize(std::vector<float>& values, size_t count) {
  if (values.size() < count) values.resize(count);
}

double SquareRoot(double x) { return __builtin_sqrt(x); }

}  // namespace

Shape::Shape(size_t vocabulary, size_t context, bool experts)
    : vocabulary_(vocabulary), context_(context), experts_(experts) {
  size_t end = 0;
  const auto take = [&end](size_t count) {
    const size_t first = end;
    end += Padded(count);
    return first;
  };
  tokens_ = take(vocabulary * kWidth);
  positions_ = take(context * kWidth);
  for (LayerOffsets& layer : layers_) {
    layer.attention_norm = take(2 * kWidth);
    layer.query_key_value = take(kWidth * 3 * kWidth);
    layer.query_key_value_bias = take(3 * kWidth);
    layer.attention_output = take(kWidth * kWidth);
    layer.attention_output_bias = take(kWidth);
    layer.hidden_norm = take(2 * kWidth);
    layer.up = take(kWidth * kHidden);
    layer.up_bias = take(kHidden);
    layer.down = take(kHidden * kWidth);
    layer.down_bias = take(kWidth);
    layer.router = take(experts ? kWidth * kPadding : 0);
  }
  final_norm_ = take(2 * kWidth);
  head_ = take(kWidth * padded_vocabulary());
  head_bias_ = take(padded_vocabulary());
  parameters_ = end;
}

std::vector<Shape::Block> Shape::matrices() const {
  std::vector<Block> blocks;
  for (const LayerOffsets& layer : layers_) {
    blocks.push_back({layer.query_key_value, kWidth * 3 * kWidth});
    blocks.push_back({layer.attention_output, kWidth * kWidth});
    blocks.push_back({layer.up, kWidth * kHidden});
    blocks.push_back({layer.down, kHidden * kWidth});
  }
  blocks.push_back({head_, kWidth * padded_vocabulary()});
  return blocks;
}

std::vector<float> Shape::Initial(uint64_t seed) const {
  std::vector<float> values(parameters_);
  Random random(seed);
  const auto normal = [&](size_t first, size_t count) {
    for (size_t i = 0; i < count; ++i) values[first + i] = Normal(random.Bits());
  };
  const auto uniform = [&](size_t first, size_t count, size_t inputs) {
    const double limit = 1.0 / SquareRoot(static_cast<double>(inputs));
    for (size_t i = 0; i < count; ++i) {
      values[first + i] = static_cast<float>((2.0 * random.InUnitInterval() - 1.0) * limit);
    }
  };
  const auto ones = [&](size_t first) {
    std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(first), kWidth, 1.0f);
  };
  normal(tokens_, vocabulary_ * kWidth);
  normal(positions_, context_ * kWidth);
  for (const LayerOffsets& layer : layers_) {
    ones(layer.attention_norm);
    ones(layer.hidden_norm);
    uniform(layer.query_key_value, kWidth * 3 * kWidth, kWidth);
    uniform(layer.query_key_value_bias, 3 * kWidth, kWidth);
    uniform(layer.attention_output, kWidth * kWidth, kWidth);
    uniform(layer.attention_output_bias, kWidth, kWidth);
    uniform(layer.up, kWidth * kHidden, kWidth);
    uniform(layer.up_bias, kHidden, kWidth);
    uniform(layer.down, kHidden * kWidth, kHidden);
    uniform(layer.down_bias, kWidth, kHidden);
    if (experts_) uniform(layer.router, kWidth * kPadding, kWidth);
  }
  ones(final_norm_);
  uniform(head_, kWidth * padded_vocabulary(), kWidth);
  uniform(head_bias_, vocabulary_, kWidth);
  return values;
}

void Transformer::Forward(std::span<const float> parameters, const PassShape& pass,
                          std::span<const int> tokens, RouterNoise noise) {
  pass_ = pass;
  tokens_.assign(tokens.begin(), tokens.end());
  const float* values = parameters.data();
  const size_t rows = pass.sequences * pass.count;
  Resize(layers_[0].input, rows * kWidth);
  for (size_t r = 0; r < rows; ++r) {
    const float* token = values + shape_.tokens() + static_cast<size_t>(tokens[r]) * kWidth;
    const float* position = values + shape_.positions() + (pass.first + r % pass.count) * kWidth;
    float* input = layers_[0].input.data() + r * kWidth;
    for (size_t i = 0; i < kWidth; ++i) input[i] = token[i] + position[i];
  }
  for (size_t i = 0; i < kLayers; ++i) {
    ForwardAttention(values, i);
    ForwardHidden(values, i, noise);
  }
  const size_t wanted = pass.sequences * pass.wanted;
  const size_t columns = shape_.padded_vocabulary();
  Resize(normalized_, wanted * kWidth);
  Resize(inverse_deviations_, wanted);
  Resize(head_input_, wanted * kWidth);
  Resize(log_probs_, wanted * columns);
  Resize(probabilities_, wanted * columns);
  NormalizeRows(wanted, output_.data(), values + shape_.final_norm(), normalized_.data(),
                inverse_deviations_.data(), head_input_.data());
  Multiply(wanted, columns, kWidth, {head_input_.data(), kWidth, 1}, values + shape_.head(),
           log_probs_.data(), false);
  AddBias(wanted, columns, values + shape_.head_bias(), log_probs_.data());
  LogSoftmax(wanted, shape_.vocabulary(), columns, log_probs_.data(), probabilities_.data());
}

void Transformer::ForwardAttention(const float* parameters, size_t index) {
  const LayerOffsets& at = shape_.layer(index);
  Layer& layer = layers_[index];
  const size_t context = shape_.context();
  const size_t padded_context = Padded(context);
  const size_t rows = pass_.sequences * pass_.count;
  const size_t queries = outputs(index);
  const size_t query_rows = pass_.sequences * queries;
  Resize(layer.normalized, rows * kWidth);
  Resize(layer.inverse_deviations, rows);
  Resize(layer.attention_input, rows * kWidth);
  Resize(layer.query_key_value, rows * 3 * kWidth);
  Resize(layer.keys_and_values, pass_.sequences * context * 2 * kWidth);
  Resize(layer.weights, query_rows * kHeads * padded_context);
  Resize(layer.attended, query_rows * kWidth);
  Resize(layer.middle, query_rows * kWidth);
  NormalizeRows(rows, layer.input.data(), parameters + at.attention_norm, layer.normalized.data(),
                layer.inverse_deviations.data(), layer.attention_input.data());
  Multiply(rows, 3 * kWidth, kWidth, {layer.attention_input.data(), kWidth, 1},
           parameters + at.query_key_value, layer.query_key_value.data(), false);
  AddBias(rows, 3 * kWidth, parameters + at.query_key_value_bias, layer.query_key_value.data());
  for (size_t s = 0; s < pass_.sequences; ++s) {
    float* memory = layer.keys_and_values.data() + s * context * 2 * kWidth;
    for (size_t i = 0; i < pass_.count; ++i) {
      std::memcpy(memory + (pass_.first + i) * 2 * kWidth,
                  layer.query_key_value.data() + (s * pass_.count + i) * 3 * kWidth + kWidth,
                  2 * kWidth * sizeof(float));
    }
    for (size_t i = 0; i < queries; ++i) {
      const size_t position = pass_.count - queries + i;
      const size_t row = s * queries + i;
      Attend(pass_.first + position + 1, padded_context,
             layer.query_key_value.data() + (s * pass_.count + position) * 3 * kWidth, memory,
             2 * kWidth, layer.weights.data() + row * kHeads * padded_context,
             layer.attended.data() + row * kWidth);
      std::memcpy(layer.middle.data() + row * kWidth,
                  layer.input.data() + (s * pass_.count + position) * kWidth,
                  kWidth * sizeof(float));
    }
  }
  Multiply(query_rows, kWidth, kWidth, {layer.attended.data(), kWidth, 1},
           parameters + at.attention_output, layer.middle.data(), true);
  AddBias(query_rows, kWidth, parameters + at.attention_output_bias, layer.middle.data());
}

void Transformer::ForwardHidden(const float* parameters, size_t index, RouterNoise noise) {
  const LayerOffsets& at = shape_.layer(index);
  Layer& layer = layers_[index];
  std::vector<float>& output = index + 1 == kLayers ? output_ : layers_[index + 1].input;
  const size_t rows = pass_.sequences * outputs(index);
  Resize(layer.middle_normalized, rows * kWidth);
  Resize(layer.middle_inverse_deviations, rows);
  Resize(layer.hidden_input, rows * kWidth);
  Resize(layer.hidden, rows * kHidden);
  Resize(layer.sigmoids, rows * kHidden);
  Resize(layer.activated, rows * kHidden);
  Resize(output, rows * kWidth);
  NormalizeRows(rows, layer.middle.data(), parameters + at.hidden_norm,
                layer.middle_normalized.data(), layer.middle_inverse_deviations.data(),
                layer.hidden_input.data());
  Multiply(rows, kHidden, kWidth, {layer.hidden_input.data(), kWidth, 1}, parameters + at.up,
           layer.hidden.data(), false);
  BiasedGelu(rows, kHidden, parameters + at.up_bias, layer.hidden.data(), layer.sigmoids.data(),
             layer.activated.data());
  const float* hidden = layer.activated.data();
  if (shape_.experts()) {
    Resize(layer.shares, rows * kPadding);
    Resize(layer.mixed, rows * kHidden);
    Multiply(rows, kPadding, kWidth, {layer.hidden_input.data(), kWidth, 1}, parameters + at.router,
             layer.shares.data(), false);
    MixExperts(layer, rows, index, noise);
    hidden = layer.mixed.data();
  }
  std::memcpy(output.data(), layer.middle.data(), rows * kWidth * sizeof(float));
  Multiply(rows, kWidth, kHidden, {hidden, kHidden, 1}, parameters + at.down, output.data(), true);
  AddBias(rows, kWidth, parameters + at.down_bias, output.data());
}

void Transformer::MixExperts(Layer& layer, size_t rows, size_t index, RouterNoise noise) const {
  for (size_t r = 0; r < rows; ++r) {
    float* shares = layer.shares.data() + r * kPadding;
    std::array<float, kExperts> logits;
    for (size_t e = 0; e < kExperts; ++e) {
      logits[e] = shares[e];
      if (noise.deviation > 0.0f) {
        logits[e] += noise.deviation * Normal(HashOf({noise.seed, index, pass_.first, r, e}));
      }
    }
    size_t first = 0;
    for (size_t e = 1; e < kExperts; ++e) first = logits[e] > logits[first] ? e : first;
    size_t second = first == 0 ? 1 : 0;
    for (size_t e = 0; e < kExperts; ++e) {
      if (e != first && logits[e] > logits[second]) second = e;
    }
    const float share = 1.0f / (1.0f + Exp32(logits[second] - logits[first]));
    std::fill_n(shares, kPadding, 0.0f);
    shares[first] = share;
    shares[second] = 1.0f - share;
    for (size_t e = 0; e < kExperts; ++e) {
      const size_t begin = r * kHidden + e * kExpertWidth;
      for (size_t i = begin; i < begin + kExpertWidth; ++i) {
        layer.mixed[i] = layer.activated[i] * (kExpertScale * shares[e]);
      }
    }
  }
}

void Transformer::Backward(std::span<const float> parameters, size_t sequences,
                           std::span<const float> d_logits, std::span<float> gradients) {
  const size_t wanted = sequences * pass_.wanted;
  const size_t columns = shape_.padded_vocabulary();
  const size_t rows = sequences * pass_.count;
  Resize(d_rows_, rows * kWidth);
  Resize(d_normal_, rows * kWidth);
  Multiply(kWidth, columns, wanted, {head_input_.data(), 1, kWidth}, d_logits.data(),
           gradients.data() + shape_.head(), true);
  AddColumnSums(wanted, columns, d_logits.data(), gradients.data() + shape_.head_bias());
  MultiplyTransposed(wanted, kWidth, columns, d_logits.data(), parameters.data() + shape_.head(),
                     d_normal_.data(), false);
  NormalizeRowsBackward(wanted, d_normal_.data(), parameters.data() + shape_.final_norm(),
                        normalized_.data(), inverse_deviations_.data(),
                        gradients.data() + shape_.final_norm(), d_rows_.data(), false);
  for (size_t i = kLayers; i-- > 0;) {
    BackwardHidden(parameters.data(), i, sequences * outputs(i), gradients.data());
    BackwardAttention(parameters.data(), i, sequences, gradients.data());
  }
  for (size_t r = 0; r < rows; ++r) {
    float* token = gradients.data() + shape_.tokens() + static_cast<size_t>(tokens_[r]) * kWidth;
    float* position = gradients.data() + shape_.positions() + r % pass_.count * kWidth;
    for (size_t i = 0; i < kWidth; ++i) {
      token[i] += d_rows_[r * kWidth + i];
      position[i] += d_rows_[r * kWidth + i];
    }
  }
}

void Transformer::BackwardHidden(const float* parameters, size_t index, size_t rows,
                                 float* gradients) {
  const LayerOffsets& at = shape_.layer(index);
  const Layer& layer = layers_[index];
  const float* hidden = shape_.experts() ? layer.mixed.data() : layer.activated.data();
  Resize(d_hidden_, rows * kHidden);
  Multiply(kHidden, kWidth, rows, {hidden, 1, kHidden}, d_rows_.data(), gradients + at.down, true);
  AddColumnSums(rows, kWidth, d_rows_.data(), gradients + at.down_bias);
  MultiplyTransposed(rows, kHidden, kWidth, d_rows_.data(), parameters + at.down, d_hidden_.data(),
                     false);
  if (shape_.experts()) UnmixExperts(layer, rows);
  GeluBackward(rows * kHidden, layer.hidden.data(), layer.sigmoids.data(), d_hidden_.data());
  Multiply(kWidth, kHidden, rows, {layer.hidden_input.data(), 1, kWidth}, d_hidden_.data(),
           gradients + at.up, true);
  AddColumnSums(rows, kHidden, d_hidden_.data(), gradients + at.up_bias);
  MultiplyTransposed(rows, kWidth, kHidden, d_hidden_.data(), parameters + at.up, d_normal_.data(),
                     false);
  if (shape_.experts()) {
    Multiply(kWidth, kPadding, rows, {layer.hidden_input.data(), 1, kWidth}, d_shares_.data(),
             gradients + at.router, true);
    MultiplyTransposed(rows, kWidth, kPadding, d_shares_.data(), parameters + at.router,
                       d_normal_.data(), true);
  }
  NormalizeRowsBackward(rows, d_normal_.data(), parameters + at.hidden_norm,
                        layer.middle_normalized.data(), layer.middle_inverse_deviations.data(),
                        gradients + at.hidden_norm, d_rows_.data(), true);
}

void Transformer::UnmixExperts(const Layer& layer, size_t rows) {
  Resize(d_shares_, rows * kPadding);
  for (size_t r = 0; r < rows; ++r) {
    const float* shares = layer.shares.data() + r * kPadding;
    float* d_shares = d_shares_.data() + r * kPadding;
    std::fill_n(d_shares, kPadding, 0.0f);
    float mean = 0.0f;
    for (size_t e = 0; e < kExperts; ++e) {
      const size_t begin = r * kHidden + e * kExpertWidth;
      float sum = 0.0f;
      for (size_t i = begin; i < begin + kExpertWidth; ++i) {
        sum += d_hidden_[i] * layer.activated[i];
        d_hidden_[i] *= kExpertScale * shares[e];
      }
      d_shares[e] = kExpertScale * sum;
      mean += d_shares[e] * shares[e];
    }
    // The softmax of the two; the shares of the others are 0.
    for (size_t e = 0; e < kExperts; ++e) d_shares[e] = shares[e] * (d_shares[e] - mean);
  }
}

void Transformer::BackwardAttention(const float* parameters, size_t index, size_t sequences,
                                    float* gradients) {
  const LayerOffsets& at = shape_.layer(index);
  const Layer& layer = layers_[index];
  const size_t padded_context = Padded(shape_.context());
  const size_t queries = outputs(index);
  const size_t query_rows = sequences * queries;
  const size_t rows = sequences * pass_.count;
  Resize(d_attended_, query_rows * kWidth);
  Resize(d_query_key_value_, rows * 3 * kWidth);
  Resize(d_input_, rows * kWidth);
  Multiply(kWidth, kWidth, query_rows, {layer.attended.data(), 1, kWidth}, d_rows_.data(),
           gradients + at.attention_output, true);
  AddColumnSums(query_rows, kWidth, d_rows_.data(), gradients + at.attention_output_bias);
  MultiplyTransposed(query_rows, kWidth, kWidth, d_rows_.data(), parameters + at.attention_output,
                     d_attended_.data(), false);
  std::fill_n(d_query_key_value_.begin(), rows * 3 * kWidth, 0.0f);
  std::fill_n(d_input_.begin(), rows * kWidth, 0.0f);
  for (size_t s = 0; s < sequences; ++s) {
    const size_t first = s * pass_.count;
    for (size_t i = 0; i < queries; ++i) {
      const size_t position = pass_.count - queries + i;
      const size_t row = s * queries + i;
      AttendBackward(position + 1, padded_context,
                     layer.query_key_value.data() + (first + position) * 3 * kWidth,
                     layer.query_key_value.data() + first * 3 * kWidth + kWidth, 3 * kWidth,
                     layer.weights.data() + row * kHeads * padded_context,
                     d_attended_.data() + row * kWidth,
                     d_query_key_value_.data() + (first + position) * 3 * kWidth,
                     d_query_key_value_.data() + first * 3 * kWidth + kWidth);
      std::memcpy(d_input_.data() + (first + position) * kWidth, d_rows_.data() + row * kWidth,
                  kWidth * sizeof(float));
    }
  }
  Multiply(kWidth, 3 * kWidth, rows, {layer.attention_input.data(), 1, kWidth},
           d_query_key_value_.data(), gradients + at.query_key_value, true);
  AddColumnSums(rows, 3 * kWidth, d_query_key_value_.data(), gradients + at.query_key_value_bias);
  MultiplyTransposed(rows, kWidth, 3 * kWidth, d_query_key_value_.data(),
                     parameters + at.query_key_value, d_normal_.data(), false);
  NormalizeRowsBackward(rows, d_normal_.data(), parameters + at.attention_norm,
                        layer.normalized.data(), layer.inverse_deviations.data(),
                        gradients + at.attention_norm, d_input_.data(), true);
  std::swap(d_rows_, d_input_);
}

void Transformer::MultiplyTransposed(size_t rows, size_t inputs, size_t outputs, const float* d,
                                     const float* matrix, float* to, bool add) {
  Resize(transposed_, inputs * outputs);
  Transpose(matrix, inputs, outputs, transposed_.data());
  Multiply(rows, inputs, outputs, {d, outputs, 1}, transposed_.data(), to, add);
}

void Transformer::CopyContext(const Transformer& prompts, size_t positions, size_t copies) {
  const size_t row = shape_.context() * 2 * kWidth;
  for (size_t i = 0; i < kLayers; ++i) {
    const std::vector<float>& from = prompts.layers_[i].keys_and_values;
    std::vector<float>& to = layers_[i].keys_and_values;
    const size_t sequences = prompts.pass_.sequences * copies;
    Resize(to, sequences * row);
    for (size_t s = 0; s < sequences; ++s) {
      std::memcpy(to.data() + s * row, from.data() + s / copies * row,
                  positions * 2 * kWidth * sizeof(float));
    }
  }
}

}  // namespace sis::study
