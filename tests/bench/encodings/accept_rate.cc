#include "tests/bench/encodings/accept_rate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/records/log_probs.h"
#include "kernels/testing/decoded_log_probs.h"

namespace sis {
namespace {

// (1 - xi) / M', xi before any rounding.
template <typename T>
double ExpectedAcceptance(const PolicyPair& pair, std::span<const T> behavior,
                          std::span<const T> current) {
  double log_envelope = -std::numeric_limits<double>::infinity();
  double covered = 0;
  for (size_t slot = 0; slot < behavior.size() && !std::isinf(behavior[slot]); ++slot) {
    log_envelope = std::max(log_envelope, static_cast<double>(current[slot] - behavior[slot]));
    covered += std::exp(static_cast<double>(pair.current[slot]));
  }
  return covered > 0 ? covered * std::exp(-log_envelope) : 0;
}

// Rounds a position's values up or down to multiples of the step that the code gives it.
std::vector<double> Rounded(const UniformCode& code, const std::vector<float>& log_probs, bool up) {
  const int lowest_code = (1 << code.bits) - 2;
  double lowest = 0;
  for (const float x : log_probs) lowest = x >= -code.floor ? std::min<double>(lowest, x) : lowest;
  if (!code.own_lowest) lowest = -code.floor;
  const double top = code.own_top ? *std::ranges::max_element(log_probs) : 0x1p-6;
  const double step = std::max(top - lowest, 0x1p-18) / lowest_code * (1 + 1e-9);
  std::vector<double> rounded;
  for (const float x : log_probs) {
    const double steps = (top - x) / step;
    double multiple = up ? std::floor(steps) : std::ceil(steps);
    if (up) multiple = std::min<double>(multiple, lowest_code);
    rounded.push_back(multiple <= lowest_code ? top - multiple * step
                                              : -std::numeric_limits<double>::infinity());
  }
  return rounded;
}

}  // namespace

double AcceptRate(const PolicyPairs& pairs, LogProbEncoding behavior) {
  const int slots = pairs.slots;
  double sum = 0;
  std::vector<std::byte> behavior_bytes(LogProbBytes(behavior, 1, slots));
  std::vector<float> behavior_decoded(slots);
  for (const PolicyPair& pair : pairs.positions) {
    uint16_t used;
    EncodeBehaviorLogProbs(behavior, pair.behavior, slots, {&used, 1}, behavior_bytes);
    DecodeLogProbs(behavior, behavior_bytes, slots, behavior_decoded);
    sum += ExpectedAcceptance<float>(pair, behavior_decoded, pair.current);
  }
  return sum / static_cast<double>(pairs.positions.size());
}

double AcceptRate(const PolicyPairs& pairs, const UniformCode& code) {
  double sum = 0;
  for (const PolicyPair& pair : pairs.positions) {
    sum += ExpectedAcceptance<double>(pair, Rounded(code, pair.behavior, false),
                                      Rounded(code, pair.current, true));
  }
  return sum / static_cast<double>(pairs.positions.size());
}

}  // namespace sis
