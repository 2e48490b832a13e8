// Output arrays of an Evaluate.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "kernels/decide/backend.h"
#include "server/evaluate/evaluate_input.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Output arrays of n positions. An array that is not wanted is empty.
struct PositionOutput {
  OutputView view;
  std::span<float> reference_log_probs =
      {};  // [n], log q, or the trainer's log-prob where q is missing
  std::span<float> total_variations = {};  // [n], see TopKTotalVariation

  PositionOutput Part(size_t first, size_t count) const;
};

// Output of all positions of a request. Wanted arrays are in the response, other arrays in the
// object.
class EvaluateOutput {
 public:
  // The arguments must outlive the object.
  EvaluateOutput(const EvaluateInput& input, size_t count, v1::EvaluateResponse& response);
  EvaluateOutput(const EvaluateOutput&) = delete;
  EvaluateOutput& operator=(const EvaluateOutput&) = delete;

  const PositionOutput& positions() const { return positions_; }
  // Adds the outputs derived from the positions to the response, and removes unwanted outputs.
  // Must be called once all positions are evaluated.
  void Finish();

 private:
  // Returns a new array of `count` zeros.
  std::span<float> Own(size_t count);

  const EvaluateInput& input_;
  v1::EvaluateResponse& response_;
  PositionOutput positions_;
  std::deque<std::vector<float>> own_;  // arrays that are not in the response
};

}  // namespace sis
