// The model of the study: a transformer of width 64, two layers, four heads, in float32. Its
// multilayer perceptrons may be mixtures of eight experts, two of which are active.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/study/layers.h"

namespace sis::study {

inline constexpr size_t kLayers = 2;
inline constexpr size_t kExperts = 8;

// Where the parameters of a layer begin.
struct LayerOffsets {
  size_t attention_norm;  // [2, kWidth]: gain, bias
  size_t query_key_value, query_key_value_bias;
  size_t attention_output, attention_output_bias;
  size_t hidden_norm;
  size_t up, up_bias;
  size_t down, down_bias;
  size_t router;  // [kWidth, kPadding], of which kExperts columns count; mixtures only
};

// The shape of a model. All parameters lie in one array.
class Shape {
 public:
  // context: the most positions of a sequence.
  Shape(size_t vocabulary, size_t context, bool experts);

  size_t vocabulary() const { return vocabulary_; }
  // The floats of a row of logits.
  size_t padded_vocabulary() const { return Padded(vocabulary_); }
  size_t context() const { return context_; }
  bool experts() const { return experts_; }

  size_t tokens() const { return tokens_; }        // [vocabulary, kWidth]
  size_t positions() const { return positions_; }  // [context, kWidth]
  const LayerOffsets& layer(size_t i) const { return layers_[i]; }
  size_t final_norm() const { return final_norm_; }  // [2, kWidth]
  size_t head() const { return head_; }              // [kWidth, padded_vocabulary]
  size_t head_bias() const { return head_bias_; }    // [padded_vocabulary]
  size_t parameters() const { return parameters_; }

  // The matrices that an engine of low precision rounds.
  struct Block {
    size_t first;
    size_t count;
  };
  std::vector<Block> matrices() const;

  // Random parameters to start from.
  std::vector<float> Initial(uint64_t seed) const;

 private:
  size_t vocabulary_;
  size_t context_;
  bool experts_;
  size_t tokens_;
  size_t positions_;
  std::array<LayerOffsets, kLayers> layers_;
  size_t final_norm_;
  size_t head_;
  size_t head_bias_;
  size_t parameters_;
};

// What an engine's router does not agree about with the trainer's: normal noise on its logits.
struct RouterNoise {
  float deviation = 0.0f;
  uint64_t seed = 0;
};

// Which sequences' positions a pass computes: `count` of them from `first` on, of `sequences`.
struct PassShape {
  size_t sequences;
  size_t first;
  size_t count;
  // Log-probs are wanted at the last so many positions.
  size_t wanted;
};

// The activations of one pass, kept for the backward pass, and the keys and values of all
// positions before. Used again and again, without new memory.
class Transformer {
 public:
  explicit Transformer(const Shape& shape) : shape_(shape) {}

  // tokens [sequences, count]. Keys and values of the positions before `first` must be there, from
  // calls before, or CopyContext.
  void Forward(std::span<const float> parameters, const PassShape& pass,
               std::span<const int> tokens, RouterNoise noise = {});

  // [sequences, wanted, padded_vocabulary], nats; and the probabilities.
  std::span<const float> log_probs() const { return log_probs_; }
  std::span<const float> probabilities() const { return probabilities_; }
  // Of one row.
  const float* log_probs(size_t sequence, size_t wanted) const {
    return log_probs_.data() + (sequence * pass_.wanted + wanted) * shape_.padded_vocabulary();
  }
  const float* probabilities(size_t sequence, size_t wanted) const {
    return probabilities_.data() + (sequence * pass_.wanted + wanted) * shape_.padded_vocabulary();
  }

  // After a Forward from position 0: adds to `gradients` those of the parameters, given those of
  // the logits [sequences, wanted, padded_vocabulary], of which only the first `sequences` are not
  // 0. There must be no router noise.
  void Backward(std::span<const float> parameters, size_t sequences,
                std::span<const float> d_logits, std::span<float> gradients);

  // Takes over what `prompts` knows of its first `positions` positions: every sequence of it
  // `copies` times.
  void CopyContext(const Transformer& prompts, size_t positions, size_t copies);

 private:
  struct Layer {
    std::vector<float> input;  // [sequences, count, kWidth]
    std::vector<float> normalized, inverse_deviations, attention_input;
    std::vector<float> query_key_value;   // [sequences, count, 3 * kWidth]
    std::vector<float> keys_and_values;   // [sequences, context, 2 * kWidth]
    std::vector<float> weights;           // [rows, kHeads, padded context]
    std::vector<float> attended, middle;  // [rows, kWidth]
    std::vector<float> middle_normalized, middle_inverse_deviations, hidden_input;
    std::vector<float> hidden, sigmoids, activated;  // [rows, kHidden]
    std::vector<float> shares;                       // [rows, kPadding]: of the experts, sum 1
    std::vector<float> mixed;                        // [rows, kHidden]
  };

  // The positions whose output counts: in the last layer the wanted ones.
  size_t outputs(size_t layer) const { return layer + 1 == kLayers ? pass_.wanted : pass_.count; }
  void ForwardAttention(const float* parameters, size_t index);
  void ForwardHidden(const float* parameters, size_t index, RouterNoise noise);
  void MixExperts(Layer& layer, size_t rows, size_t index, RouterNoise noise) const;
  // d_rows_ [sequences, outputs, kWidth] becomes that of the layer's input.
  void BackwardHidden(const float* parameters, size_t index, size_t rows, float* gradients);
  void BackwardAttention(const float* parameters, size_t index, size_t sequences, float* gradients);
  // d_hidden_ becomes that of the activations of the experts; d_shares_ that of the router's
  // logits.
  void UnmixExperts(const Layer& layer, size_t rows);
  // to [rows, inputs] (+)= d [rows, outputs] * transposed matrix [inputs, outputs].
  void MultiplyTransposed(size_t rows, size_t inputs, size_t outputs, const float* d,
                          const float* matrix, float* to, bool add);

  const Shape& shape_;
  PassShape pass_ = {};
  std::vector<int> tokens_;
  std::array<Layer, kLayers> layers_;
  std::vector<float> output_;  // of the last layer
  std::vector<float> normalized_, inverse_deviations_, head_input_;
  std::vector<float> log_probs_, probabilities_;
  // Of the backward pass.
  std::vector<float> transposed_, d_rows_, d_input_, d_normal_, d_hidden_, d_shares_, d_attended_,
      d_query_key_value_;
};

}  // namespace sis::study
