// Random positions for tests: sharp and flat distributions, short and full sets, ties, and tails
// below the lowest code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace sis {

struct RandomPosition {
  std::vector<float> behavior;  // [K] sorted; unused slots, at the end, -inf
  std::vector<float> current;   // [K]; NaN in unused slots
  size_t used;
};

class RandomPositions {
 public:
  explicit RandomPositions(uint32_t seed) : random_(seed) {}

  RandomPosition Next(size_t slots) {
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    RandomPosition position{
        .behavior = std::vector<float>(slots, kMinusInfinity),
        .current = std::vector<float>(slots, std::numeric_limits<float>::quiet_NaN()),
        .used = OneIn(8) ? Below(slots + 1) : slots};
    std::vector<double> behavior(position.used);
    std::vector<double> current(position.used);
    const double gap = std::exp2(Uniform(-8, 4));
    const double drift = std::exp2(Uniform(-12, 1));
    double score = 0;
    for (size_t slot = 0; slot < position.used; ++slot) {
      if (!OneIn(6)) score -= gap * -std::log(Uniform(1e-9, 1));  // else a tie
      behavior[slot] = score;
      current[slot] = score + drift * normal_(random_);
      if (OneIn(50)) current[slot] = -std::exp2(Uniform(-150, 17));
      if (OneIn(100)) current[slot] = -std::numeric_limits<double>::infinity();
    }
    if (OneIn(20) && position.used > 0) behavior.back() = -std::exp2(Uniform(6, 17));
    std::ranges::sort(behavior, std::greater<>());
    const double uncovered = OneIn(4) ? 0 : std::exp2(Uniform(-40, 2));
    Normalise(behavior, uncovered);
    Normalise(current, uncovered);
    std::ranges::copy(behavior, position.behavior.begin());
    std::ranges::copy(current, position.current.begin());
    return position;
  }

  // Returns a number in [0, bound).
  size_t Below(size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
  }

 private:
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  bool OneIn(int n) { return Below(n) == 0; }

  // Adds a constant, so that the probabilities sum to 1 with a share for the rest of the
  // vocabulary.
  static void Normalise(std::vector<double>& scores, double uncovered) {
    double sum = uncovered;
    for (const double score : scores) sum += std::exp(score);
    const double shift = sum > 0 ? std::log(sum) : 0;
    for (double& score : scores) score -= shift;
  }

  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

}  // namespace sis
