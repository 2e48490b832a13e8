// One way of training: a base algorithm, and what becomes of the importance ratio before it.
#pragma once

#include <limits>
#include <optional>

#include "client/study/explored.h"
#include "client/study/mismatch.h"
#include "kernels/decide/algorithms/algorithm.h"

namespace sis::study {

enum class Correction {
  kNone,      // the importance ratio as it is
  kSampled,   // SIS: 1 if accepted
  kExpected,  // SIS: the mean over the draw
  // SIS, sampled, for positive advantages only.
  kPositive,
  // A control: 1 with the position's expected accept rate, whatever token was drawn.
  kRandom,
};

struct Arm {
  Algorithm algorithm = Grpo{};
  Correction correction = Correction::kNone;
  MismatchWeight mismatch = {};
  // Its coefficients are taken in the place of the algorithm's.
  std::optional<Explored> explored = {};
  // A control: acceptance probabilities are min(w, 1 / w), for which nothing but the sampled token
  // is needed, and what is drawn is drawn by them.
  bool without_sets = false;
  // As in DAPO: responses to a prompt that all got one reward don't count in the mean over tokens.
  bool leaves_out_equal_groups = false;
  // Tokens with a negative advantage and a ratio above this get no gradient (Ye et al., 2020).
  float dual_clip = std::numeric_limits<float>::infinity();
};

}  // namespace sis::study
