// The model of the study: a transformer with heads of width 16, in float32. Its multilayer
// perceptrons, four times as wide as it, may be mixtures of eight experts, two of which are active.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/study/layers.h"

namespace sis::study {

inline constexpr size_t kExperts = 8;

// Where the parameters of x * weights + bias begin.
struct Linear {
  size_t inputs;
  size_t outputs;              // with padding
  size_t weights;              // [inputs, outputs]
  std::optional<size_t> bias;  // [outputs]
};

// The shape of a model. All parameters lie in one array; a size_t says where they begin.
struct Shape {
  // context: the most positions of a sequence. width: a multiple of kHeadWidth.
  Shape(size_t vocabulary, size_t context, size_t width, size_t layers, bool experts);

  // Random parameters to start from.
  std::vector<float> Initial(uint64_t seed) const;
  // The floats of a row of logits.
  size_t padded_vocabulary() const { return Padded(vocabulary); }
  size_t heads() const { return width / kHeadWidth; }
  size_t hidden_width() const { return 4 * width; }

  enum class Kind { kEmbedding, kNorm, kMatrix, kBias, kRouter };
  struct Array {
    Kind kind;
    size_t first;
    size_t count;
    size_t inputs;  // of what it is multiplied with or added to
  };
  // Norms are [2, width], gain and bias.
  struct Layer {
    size_t attention_norm;
    Linear query_key_value, attention_output;
    size_t hidden_norm;
    Linear up, down;
    Linear router;  // kExperts of its columns count; mixtures only
  };

  const size_t vocabulary;
  const size_t context;
  const size_t width;
  const bool experts;
  std::vector<Array> arrays;  // all of them
  size_t parameters = 0;
  size_t tokens;     // [vocabulary, width]
  size_t positions;  // [context, width]
  std::vector<Layer> layers;
  size_t final_norm;
  Linear head;

 private:
  size_t Take(Kind kind, size_t count, size_t inputs = 0);
  Linear TakeLinear(size_t inputs, size_t outputs);
};

// What an engine's router does not agree about with the trainer's: normal noise on its logits.
struct RouterNoise {
  float deviation = 0.0f;
  uint64_t seed = 0;
  // Of the pass, among those that are generated with one seed.
  size_t first_sequence = 0;
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
  explicit Transformer(const Shape& shape)
      : shape_(shape),
        width_(shape.width),
        hidden_width_(shape.hidden_width()),
        operations_(BestOperations()),
        layers_(shape.layers.size()) {}

  // tokens [sequences, count]. Keys and values of the positions before `first` must be there, from
  // calls before, or CopyContext.
  void Forward(std::span<const float> parameters, const PassShape& pass,
               std::span<const int> tokens, RouterNoise noise = {});

  // One row of [sequences, wanted, padded_vocabulary]: nats; and the probabilities.
  const float* log_probs(size_t sequence, size_t wanted) const {
    return log_probs_.data() + (sequence * pass_.wanted + wanted) * shape_.padded_vocabulary();
  }
  const float* probabilities(size_t sequence, size_t wanted) const {
    return probabilities_.data() + (sequence * pass_.wanted + wanted) * shape_.padded_vocabulary();
  }

  // After a Forward from position 0, whose parameters must still be there: adds to `gradients`
  // those of the parameters, given those of the logits [sequences, wanted, padded_vocabulary], of
  // which only the first `sequences` are not 0. There must be no router noise.
  void Backward(size_t sequences, std::span<const float> d_logits, std::span<float> gradients);

  // Takes over what `prompts` knows of its first `positions` positions: every sequence of it
  // `copies` times.
  void CopyContext(const Transformer& prompts, size_t positions, size_t copies);

 private:
  struct Norm {
    std::vector<float> normalized;          // [rows, width]
    std::vector<float> inverse_deviations;  // [rows]
    std::vector<float> output;              // [rows, width]
  };
  struct Layer {
    std::vector<float> input;  // [sequences, count, width]
    Norm attention_norm;
    std::vector<float> query_key_value;   // [sequences, count, 3 * width]
    std::vector<float> keys_and_values;   // [sequences, context, 2 * width]
    std::vector<float> weights;           // [rows, heads, padded context]
    std::vector<float> attended, middle;  // [rows, width]
    Norm hidden_norm;
    std::vector<float> hidden, sigmoids, activated;  // [rows, hidden_width]
    std::vector<float> shares;                       // [rows, kPadding]: of the experts, sum 1
    std::vector<float> mixed;                        // [rows, hidden_width]
  };

  const float* Normalize(size_t at, size_t rows, const float* x, Norm& norm) const;
  void NormalizeBackward(size_t at, size_t rows, const float* d_y, const Norm& norm, float* d_x,
                         bool add) const;
  // y [rows, outputs], added to it if `add`.
  void Apply(const Linear& linear, size_t rows, const float* x, float* y, bool add = false) const;
  void ApplyBackward(const Linear& linear, size_t rows, const float* x, const float* d_y,
                     float* d_x, bool add = false);

  // The positions whose output counts: in the last layer the wanted ones.
  size_t outputs(size_t layer) const {
    return layer + 1 == layers_.size() ? pass_.wanted : pass_.count;
  }
  void ForwardAttention(size_t index);
  void ForwardHidden(size_t index, RouterNoise noise);
  void MixExperts(Layer& layer, size_t rows, size_t index, RouterNoise noise) const;
  // d_rows_ [sequences, outputs, width] becomes that of the layer's input.
  void BackwardHidden(size_t index, size_t rows);
  void BackwardAttention(size_t index, size_t sequences);
  // d_hidden_ becomes that of the activations of the experts; d_shares_ that of the router's
  // logits.
  void UnmixExperts(const Layer& layer, size_t rows);

  const Shape& shape_;
  const size_t width_;
  const size_t hidden_width_;
  const LayerOperations& operations_;
  PassShape pass_ = {};
  const float* parameters_ = nullptr;
  std::vector<int> tokens_;
  std::vector<Layer> layers_;
  std::vector<float> output_;  // of the last layer
  Norm final_norm_;
  std::vector<float> log_probs_, probabilities_;
  // Of the backward pass.
  float* gradients_ = nullptr;
  std::vector<float> transposed_, d_rows_, d_input_, d_normal_, d_hidden_, d_shares_, d_attended_,
      d_query_key_value_;
};

}  // namespace sis::study
