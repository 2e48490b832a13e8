// What comes of an Evaluate's positions, and where it goes.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "kernels/decide/backend.h"
#include "server/evaluate/evaluate_input.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Of n positions. An array that nobody wants is empty.
struct PositionOutput {
  OutputView view;
  std::span<float> reference_log_probs = {};  // [n], log q, or the trainer's own where missing
  std::span<float> total_variations = {};     // [n], see TopKTotalVariation

  PositionOutput Part(size_t first, size_t count) const;
};

// Of all positions of a request. What is wanted lies in the response, the rest in here.
class EvaluateOutput {
 public:
  // The arguments must outlive the object.
  EvaluateOutput(const EvaluateInput& input, size_t count, v1::EvaluateResponse& response);
  EvaluateOutput(const EvaluateOutput&) = delete;
  EvaluateOutput& operator=(const EvaluateOutput&) = delete;

  const PositionOutput& positions() const { return positions_; }
  // When all positions are there: adds to the response what is made of them, and takes away what
  // was not wanted.
  void Finish();

 private:
  // A new array of so many zeros.
  std::span<float> Own(size_t count);

  const EvaluateInput& input_;
  v1::EvaluateResponse& response_;
  PositionOutput positions_;
  std::deque<std::vector<float>> own_;  // arrays that are not in the response
};

}  // namespace sis
