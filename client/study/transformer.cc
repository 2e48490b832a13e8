#include "client/study/transformer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "client/study/random.h"
#include "kernels/numerics/exp32.h"

namespace sis::study {
namespace {

// The shares of two experts sum up to 1: doubled, a mixture is as large as a dense layer.
constexpr float kExpertScale = 2.0f;

float* Room(std::vector<float>& values, size_t count) {
  if (values.size() < count) values.resize(count);
  return values.data();
}

}  // namespace

Shape::Shape(size_t vocabulary, size_t context, size_t width, size_t layer_count, bool experts)
    : vocabulary(vocabulary),
      context(context),
      width(width),
      experts(experts),
      layers(layer_count) {
  tokens = Take(Kind::kEmbedding, vocabulary * width);
  positions = Take(Kind::kEmbedding, context * width);
  for (Layer& layer : layers) {
    layer.attention_norm = Take(Kind::kNorm, 2 * width);
    layer.query_key_value = TakeLinear(width, 3 * width);
    layer.attention_output = TakeLinear(width, width);
    layer.hidden_norm = Take(Kind::kNorm, 2 * width);
    layer.up = TakeLinear(width, hidden_width());
    layer.down = TakeLinear(hidden_width(), width);
    if (experts) {
      layer.router = {width, kPadding, Take(Kind::kRouter, width * kPadding, width), {}};
    }
  }
  final_norm = Take(Kind::kNorm, 2 * width);
  head = TakeLinear(width, vocabulary);
}

size_t Shape::Take(Kind kind, size_t count, size_t inputs) {
  arrays.push_back({kind, parameters, count, inputs});
  parameters += Padded(count);
  return arrays.back().first;
}

Linear Shape::TakeLinear(size_t inputs, size_t outputs) {
  return {inputs, Padded(outputs), Take(Kind::kMatrix, inputs * Padded(outputs), inputs),
          Take(Kind::kBias, outputs, inputs)};
}

std::vector<float> Shape::Initial(uint64_t seed) const {
  std::vector<float> values(parameters);
  Random random(seed);
  for (const Array& array : arrays) {
    const std::span<float> of_array = std::span(values).subspan(array.first, array.count);
    if (array.kind == Kind::kEmbedding) {
      for (float& value : of_array) value = Normal(random.Bits());
    } else if (array.kind == Kind::kNorm) {
      std::ranges::fill(of_array.first(width), 1.0f);
    } else {
      const double limit = 1.0 / __builtin_sqrt(static_cast<double>(array.inputs));
      for (float& value : of_array) {
        value = static_cast<float>((2.0 * random.InUnitInterval() - 1.0) * limit);
      }
    }
  }
  return values;
}

const float* Transformer::Normalize(size_t at, size_t rows, const float* x, Norm& norm) const {
  float* y = Room(norm.output, rows * width_);
  operations_.normalize(rows, width_, x, parameters_ + at, Room(norm.normalized, rows * width_),
                        Room(norm.inverse_deviations, rows), y);
  return y;
}

void Transformer::NormalizeBackward(size_t at, size_t rows, const float* d_y, const Norm& norm,
                                    float* d_x, bool add) const {
  operations_.normalize_backward(rows, width_, d_y, parameters_ + at, norm.normalized.data(),
                                 norm.inverse_deviations.data(), gradients_ + at, d_x, add);
}

void Transformer::Apply(const Linear& linear, size_t rows, const float* x, float* y,
                        bool add) const {
  operations_.multiply(rows, linear.outputs, linear.inputs, {x, linear.inputs, 1},
                       parameters_ + linear.weights, y, add);
  if (linear.bias) operations_.add_bias(rows, linear.outputs, parameters_ + *linear.bias, y);
}

void Transformer::ApplyBackward(const Linear& linear, size_t rows, const float* x, const float* d_y,
                                float* d_x, bool add) {
  const auto [inputs, outputs, weights, bias] = linear;
  operations_.multiply(inputs, outputs, rows, {x, 1, inputs}, d_y, gradients_ + weights, true);
  if (bias) operations_.add_column_sums(rows, outputs, d_y, gradients_ + *bias);
  float* transposed = Room(transposed_, inputs * outputs);
  for (size_t r = 0; r < inputs; ++r) {
    for (size_t c = 0; c < outputs; ++c) {
      transposed[c * inputs + r] = parameters_[weights + r * outputs + c];
    }
  }
  operations_.multiply(rows, inputs, outputs, {d_y, outputs, 1}, transposed, d_x, add);
}

void Transformer::Forward(std::span<const float> parameters, const PassShape& pass,
                          std::span<const int> tokens, RouterNoise noise) {
  pass_ = pass;
  parameters_ = parameters.data();
  tokens_.assign(tokens.begin(), tokens.end());
  const size_t rows = pass.sequences * pass.count;
  float* input = Room(layers_[0].input, rows * width_);
  for (size_t r = 0; r < rows; ++r) {
    const float* token = parameters_ + shape_.tokens + static_cast<size_t>(tokens[r]) * width_;
    const float* position = parameters_ + shape_.positions + (pass.first + r % pass.count) * width_;
    for (size_t i = 0; i < width_; ++i) input[r * width_ + i] = token[i] + position[i];
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    ForwardAttention(i);
    ForwardHidden(i, noise);
  }
  const size_t wanted = pass.sequences * pass.wanted;
  const size_t columns = shape_.padded_vocabulary();
  float* logits = Room(log_probs_, wanted * columns);
  Apply(shape_.head, wanted, Normalize(shape_.final_norm, wanted, output_.data(), final_norm_),
        logits);
  operations_.log_softmax(wanted, shape_.vocabulary, columns, logits,
                          Room(probabilities_, wanted * columns));
}

void Transformer::ForwardAttention(size_t index) {
  const Shape::Layer& at = shape_.layers[index];
  Layer& layer = layers_[index];
  const size_t padded_context = Padded(shape_.context);
  const size_t rows = pass_.sequences * pass_.count;
  const size_t queries = outputs(index);
  const size_t query_rows = pass_.sequences * queries;
  const float* input = layer.input.data();
  float* query_key_value = Room(layer.query_key_value, rows * 3 * width_);
  float* memory = Room(layer.keys_and_values, pass_.sequences * shape_.context * 2 * width_);
  float* weights = Room(layer.weights, query_rows * shape_.heads() * padded_context);
  float* attended = Room(layer.attended, query_rows * width_);
  float* middle = Room(layer.middle, query_rows * width_);
  Apply(at.query_key_value, rows, Normalize(at.attention_norm, rows, input, layer.attention_norm),
        query_key_value);
  for (size_t s = 0; s < pass_.sequences; ++s) {
    float* keys_and_values = memory + s * shape_.context * 2 * width_;
    for (size_t i = 0; i < pass_.count; ++i) {
      std::copy_n(query_key_value + (s * pass_.count + i) * 3 * width_ + width_, 2 * width_,
                  keys_and_values + (pass_.first + i) * 2 * width_);
    }
    for (size_t i = 0; i < queries; ++i) {
      const size_t position = pass_.count - queries + i;
      const size_t from = s * pass_.count + position;
      const size_t to = s * queries + i;
      operations_.attend(width_, pass_.first + position + 1, padded_context,
                         query_key_value + from * 3 * width_, keys_and_values, 2 * width_,
                         weights + to * shape_.heads() * padded_context, attended + to * width_);
      std::copy_n(input + from * width_, width_, middle + to * width_);
    }
  }
  Apply(at.attention_output, query_rows, attended, middle, true);
}

void Transformer::ForwardHidden(size_t index, RouterNoise noise) {
  const Shape::Layer& at = shape_.layers[index];
  Layer& layer = layers_[index];
  const size_t rows = pass_.sequences * outputs(index);
  const float* middle = layer.middle.data();
  const float* input = Normalize(at.hidden_norm, rows, middle, layer.hidden_norm);
  float* hidden = Room(layer.hidden, rows * hidden_width_);
  float* activated = Room(layer.activated, rows * hidden_width_);
  Apply(at.up, rows, input, hidden);
  operations_.gelu(rows * hidden_width_, hidden, Room(layer.sigmoids, rows * hidden_width_),
                   activated);
  if (shape_.experts) {
    Apply(at.router, rows, input, Room(layer.shares, rows * kPadding));
    activated = Room(layer.mixed, rows * hidden_width_);
    MixExperts(layer, rows, index, noise);
  }
  float* output =
      Room(index + 1 == layers_.size() ? output_ : layers_[index + 1].input, rows * width_);
  std::copy_n(middle, rows * width_, output);
  Apply(at.down, rows, activated, output, true);
}

void Transformer::MixExperts(Layer& layer, size_t rows, size_t index, RouterNoise noise) const {
  const size_t expert_width = hidden_width_ / kExperts;
  const size_t first_row = noise.first_sequence * outputs(index);
  for (size_t r = 0; r < rows; ++r) {
    float* shares = layer.shares.data() + r * kPadding;
    std::array<float, kExperts> logits;
    for (size_t e = 0; e < kExperts; ++e) {
      logits[e] = shares[e];
      if (noise.deviation > 0.0f) {
        logits[e] +=
            noise.deviation * Normal(HashOf({noise.seed, index, pass_.first, first_row + r, e}));
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
      const size_t begin = r * hidden_width_ + e * expert_width;
      for (size_t i = begin; i < begin + expert_width; ++i) {
        layer.mixed[i] = layer.activated[i] * (kExpertScale * shares[e]);
      }
    }
  }
}

void Transformer::Backward(size_t sequences, std::span<const float> d_logits,
                           std::span<float> gradients) {
  gradients_ = gradients.data();
  const size_t wanted = sequences * pass_.wanted;
  const size_t rows = sequences * pass_.count;
  float* d_rows = Room(d_rows_, rows * width_);
  float* d_normal = Room(d_normal_, rows * width_);
  ApplyBackward(shape_.head, wanted, final_norm_.output.data(), d_logits.data(), d_normal);
  NormalizeBackward(shape_.final_norm, wanted, d_normal, final_norm_, d_rows, false);
  for (size_t i = layers_.size(); i-- > 0;) {
    BackwardHidden(i, sequences * outputs(i));
    BackwardAttention(i, sequences);
  }
  for (size_t r = 0; r < rows; ++r) {
    float* token = gradients_ + shape_.tokens + static_cast<size_t>(tokens_[r]) * width_;
    float* position = gradients_ + shape_.positions + r % pass_.count * width_;
    for (size_t i = 0; i < width_; ++i) {
      token[i] += d_rows_[r * width_ + i];
      position[i] += d_rows_[r * width_ + i];
    }
  }
}

void Transformer::BackwardHidden(size_t index, size_t rows) {
  const Shape::Layer& at = shape_.layers[index];
  const Layer& layer = layers_[index];
  const float* input = layer.hidden_norm.output.data();
  float* d_hidden = Room(d_hidden_, rows * hidden_width_);
  ApplyBackward(at.down, rows, (shape_.experts ? layer.mixed : layer.activated).data(),
                d_rows_.data(), d_hidden);
  if (shape_.experts) UnmixExperts(layer, rows);
  operations_.gelu_backward(rows * hidden_width_, layer.hidden.data(), layer.sigmoids.data(),
                            d_hidden);
  ApplyBackward(at.up, rows, input, d_hidden, d_normal_.data());
  if (shape_.experts) {
    ApplyBackward(at.router, rows, input, d_shares_.data(), d_normal_.data(), true);
  }
  NormalizeBackward(at.hidden_norm, rows, d_normal_.data(), layer.hidden_norm, d_rows_.data(),
                    true);
}

void Transformer::UnmixExperts(const Layer& layer, size_t rows) {
  const size_t expert_width = hidden_width_ / kExperts;
  float* d_shares = Room(d_shares_, rows * kPadding);
  for (size_t r = 0; r < rows; ++r, d_shares += kPadding) {
    const float* shares = layer.shares.data() + r * kPadding;
    std::fill_n(d_shares, kPadding, 0.0f);
    float mean = 0.0f;
    for (size_t e = 0; e < kExperts; ++e) {
      const size_t begin = r * hidden_width_ + e * expert_width;
      float sum = 0.0f;
      for (size_t i = begin; i < begin + expert_width; ++i) {
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

void Transformer::BackwardAttention(size_t index, size_t sequences) {
  const Shape::Layer& at = shape_.layers[index];
  const Layer& layer = layers_[index];
  const size_t padded_context = Padded(shape_.context);
  const size_t queries = outputs(index);
  const size_t query_rows = sequences * queries;
  const size_t rows = sequences * pass_.count;
  const float* query_key_value = layer.query_key_value.data();
  float* d_attended = Room(d_attended_, query_rows * width_);
  float* d_query_key_value = Room(d_query_key_value_, rows * 3 * width_);
  float* d_input = Room(d_input_, rows * width_);
  ApplyBackward(at.attention_output, query_rows, layer.attended.data(), d_rows_.data(), d_attended);
  std::fill_n(d_query_key_value, rows * 3 * width_, 0.0f);
  std::fill_n(d_input, rows * width_, 0.0f);
  for (size_t s = 0; s < sequences; ++s) {
    const size_t keys_and_values = s * pass_.count * 3 * width_ + width_;
    for (size_t i = 0; i < queries; ++i) {
      const size_t position = pass_.count - queries + i;
      const size_t to = s * pass_.count + position;
      const size_t from = s * queries + i;
      operations_.attend_backward(
          width_, position + 1, padded_context, query_key_value + to * 3 * width_,
          query_key_value + keys_and_values, 3 * width_,
          layer.weights.data() + from * shape_.heads() * padded_context, d_attended + from * width_,
          d_query_key_value + to * 3 * width_, d_query_key_value + keys_and_values);
      std::copy_n(d_rows_.data() + from * width_, width_, d_input + to * width_);
    }
  }
  ApplyBackward(at.query_key_value, rows, layer.attention_norm.output.data(), d_query_key_value,
                d_normal_.data());
  NormalizeBackward(at.attention_norm, rows, d_normal_.data(), layer.attention_norm, d_input, true);
  std::swap(d_rows_, d_input_);
}

void Transformer::CopyContext(const Transformer& prompts, size_t positions, size_t copies) {
  const size_t row = shape_.context * 2 * width_;
  const size_t sequences = prompts.pass_.sequences * copies;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const float* from = prompts.layers_[i].keys_and_values.data();
    float* to = Room(layers_[i].keys_and_values, sequences * row);
    for (size_t s = 0; s < sequences; ++s) {
      std::copy_n(from + s / copies * row, positions * 2 * width_, to + s * row);
    }
  }
}

}  // namespace sis::study
