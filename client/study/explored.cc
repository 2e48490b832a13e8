#include "client/study/explored.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/decide/algorithms/token.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/exp_sum.h"

namespace sis::study {
namespace {

double Ratio(const ExploredTokens& tokens, size_t i) {
  return Exp32(tokens.sampled_current[i] - tokens.sampled_behavior[i]);
}

// Calls visit(q, p) for the set, for the sampled token where it is outside, and for the rest of
// both distributions as one.
void ForEachEvent(const ExploredTokens& tokens, size_t i,
                  const std::function<void(double, double)>& visit) {
  double rest_q = 1.0, rest_p = 1.0;
  const auto add = [&](float log_q, float log_p) {
    if (log_q == -INFINITY) return;
    const double q = Exp32(log_q), p = Exp32(log_p);
    rest_q -= q;
    rest_p -= p;
    visit(q, p);
  };
  for (size_t slot = i * tokens.top_k; slot < (i + 1) * tokens.top_k; ++slot) {
    add(tokens.behavior[slot], tokens.current[slot]);
  }
  if (tokens.ranks[i] >= tokens.top_k) add(tokens.sampled_behavior[i], tokens.sampled_current[i]);
  visit(std::max(rest_q, 0.0), std::max(rest_p, 0.0));
}

double TotalVariation(const ExploredTokens& tokens, size_t i) {
  double sum = 0.0;
  ForEachEvent(tokens, i, [&](double q, double p) { sum += std::abs(p - q) / 2.0; });
  return std::min(sum, 1.0);
}

double KlDivergence(const ExploredTokens& tokens, size_t i) {
  // A rest that only rounding has left would count without bound.
  constexpr double kLeast = 1e-6;
  double sum = 0.0;
  ForEachEvent(tokens, i, [&](double q, double p) {
    if (q > kLeast) sum += q * (Log64(q) - Log64(std::max(p, kLeast)));
  });
  return std::max(sum, 0.0);
}

// Of p, on the recorded set.
double CoveredMass(const ExploredTokens& tokens, size_t i) {
  double mass = 0.0;
  for (size_t slot = i * tokens.top_k; slot < (i + 1) * tokens.top_k; ++slot) {
    if (tokens.behavior[slot] != -INFINITY) mass += Exp32(tokens.current[slot]);
  }
  return std::min(mass, 1.0);
}

// The least m >= 1 with sum over the set of max(0, p - m q) <= `budget`.
double BudgetedEnvelope(const ExploredTokens& tokens, size_t i, double budget) {
  std::vector<std::pair<float, size_t>> by_ratio;
  for (size_t slot = i * tokens.top_k; slot < (i + 1) * tokens.top_k; ++slot) {
    if (tokens.behavior[slot] == -INFINITY) continue;
    by_ratio.emplace_back(tokens.current[slot] - tokens.behavior[slot], slot);
  }
  std::ranges::sort(by_ratio, std::greater());
  double envelope = 1.0, p = 0.0, q = 0.0;
  for (const auto& [ratio, slot] : by_ratio) {
    p += Exp32(tokens.current[slot]);
    q += Exp32(tokens.behavior[slot]);
    envelope = std::max(envelope, (p - budget) / q);
  }
  return envelope;
}

double MeanAcceptance(const ExploredTokens& tokens, double lambda) {
  double sum = 0.0;
  for (size_t i = 0; i < tokens.size(); ++i) sum += std::min(1.0, Ratio(tokens, i) / lambda);
  return sum / static_cast<double>(tokens.size());
}

// The lambda whose mean acceptance is the budget: by bisection of its logarithm.
double LambdaOf(const ExploredTokens& tokens, double budget) {
  float low = -20.0f, high = 20.0f;
  for (int step = 0; step < 40; ++step) {
    const float middle = (low + high) / 2.0f;
    (MeanAcceptance(tokens, Exp32(middle)) > budget ? low : high) = middle;
  }
  return Exp32(low);
}

// Accepted tokens weigh p / (their distribution after rejection) = Z max(lambda, w), up to 2; Z is
// taken over the recorded set, as q isn't known elsewhere, and scaled to the batch's acceptance.
void RejectWithin(const ExploredTokens& tokens, double lambda, std::span<float> coefficients) {
  constexpr double kLargestWeight = 2.0;
  std::vector<double> normalizers(tokens.size());
  double normalizer_sum = 0.0, accepted = 0.0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (size_t slot = i * tokens.top_k; slot < (i + 1) * tokens.top_k; ++slot) {
      if (tokens.behavior[slot] == -INFINITY) continue;
      normalizers[i] +=
          std::min(double{Exp32(tokens.behavior[slot])}, Exp32(tokens.current[slot]) / lambda);
    }
    normalizer_sum += normalizers[i];
    const double w = Ratio(tokens, i);
    const bool is_accepted = tokens.uniforms[i] < std::min(1.0, w / lambda);
    accepted += is_accepted ? 1.0 : 0.0;
    coefficients[i] = is_accepted ? static_cast<float>(std::max(lambda, w)) : 0.0f;
  }
  const double scale = normalizer_sum > 0.0 ? accepted / normalizer_sum : 0.0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    coefficients[i] =
        static_cast<float>(std::min(scale * normalizers[i] * coefficients[i], kLargestWeight));
  }
}

// phi(W) = e^lambda W^k e^(-lambda W) of the response's whole ratio W.
void WeighResponses(const ExploredTokens& tokens, std::span<float> coefficients) {
  size_t at = 0;
  for (const size_t length : tokens.lengths) {
    float log_ratio = 0.0f;
    for (size_t i = at; i < at + length; ++i) {
      log_ratio +=
          std::clamp(tokens.sampled_current[i] - tokens.sampled_behavior[i], -20.0f, 20.0f);
    }
    log_ratio = std::clamp(log_ratio, -18.420681f, 20.0f);  // as its authors: W at least 1e-8
    const bool positive = length == 0 || tokens.advantages[at] >= 0.0f;
    const float k = positive ? 2.0f : 3.0f;
    const float lambda = positive ? 3.0f : 2.0f;
    const float weight =
        Exp32(std::max(lambda + k * log_ratio - lambda * Exp32(log_ratio), -88.0f));
    std::fill_n(coefficients.begin() + static_cast<std::ptrdiff_t>(at), length, weight);
    at += length;
  }
}

// Those of a negative advantage whose log-probs have fallen by more than `most` a token.
void MaskResponses(const ExploredTokens& tokens, double most, std::span<float> coefficients) {
  size_t at = 0;
  for (const size_t length : tokens.lengths) {
    double fallen = 0.0;
    for (size_t i = at; i < at + length; ++i) {
      fallen += tokens.sampled_behavior[i] - tokens.sampled_current[i];
    }
    if (length > 0 && tokens.advantages[at] < 0.0f && fallen > most * static_cast<double>(length)) {
      std::ranges::fill(coefficients.subspan(at, length), 0.0f);
    }
    at += length;
  }
}

// w^beta with the largest beta of at most 1 that leaves (sum)^2 / (n sum of squares) at the share.
void TemperTo(const ExploredTokens& tokens, double share, std::span<float> coefficients) {
  const auto weights = [&](float beta) {
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double weight = Exp32(beta * (tokens.sampled_current[i] - tokens.sampled_behavior[i]));
      sum += weight;
      squares += weight * weight;
      coefficients[i] = static_cast<float>(weight);
    }
    return sum * sum / (static_cast<double>(tokens.size()) * squares);
  };
  if (weights(1.0f) >= share) return;
  float low = 0.0f, high = 1.0f;
  for (int step = 0; step < 20; ++step) {
    const float middle = (low + high) / 2.0f;
    (weights(middle) >= share ? low : high) = middle;
  }
  weights(low);
}

}  // namespace

void Explored::Apply(const ExploredTokens& tokens, std::span<float> coefficients) const {
  if (tokens.size() == 0) return;
  // Of every token by itself.
  const auto each = [&](const auto& weight) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      coefficients[i] = static_cast<float>(weight(i, Ratio(tokens, i)));
    }
  };
  const auto outward = [&](size_t i, double w) {
    return IsOutward(static_cast<float>(w), tokens.advantages[i]);
  };
  const auto damped = [&](const auto& factor) {
    each([&](size_t i, double w) {
      return std::min(w, 1.0) * (outward(i, w) ? factor(i, w) : 1.0);
    });
  };
  const auto clipped = [&](size_t i, double w) {
    return outward(i, w) && std::abs(w - 1.0) > 0.2 ? 0.0 : w;
  };
  const auto a = [&](size_t i, double) { return double{tokens.acceptance_probabilities[i]}; };
  switch (kind) {
    case Kind::kBudgetedRejection:
      return RejectWithin(tokens, parameter, coefficients);
    case Kind::kAcceptanceBudget:
      return RejectWithin(tokens, LambdaOf(tokens, parameter), coefficients);
    case Kind::kVespo:
      return WeighResponses(tokens, coefficients);
    case Kind::kDrpo:
      return each([&](size_t i, double w) {
        const double advantage = tokens.advantages[i];
        const double sign = advantage > 0.0 ? 1.0 : advantage < 0.0 ? -1.0 : 0.0;
        const double shift =
            double{Exp32(tokens.sampled_current[i])} - double{Exp32(tokens.sampled_behavior[i])};
        return w * (1.0 - sign * shift / parameter);
      });
    case Kind::kResponseMask:
      each(clipped);
      return MaskResponses(tokens, parameter, coefficients);
    case Kind::kTotalVariation:
      return damped([&](size_t i, double) {
        return std::max(0.0, 1.0 - TotalVariation(tokens, i) / parameter);
      });
    case Kind::kKlDivergence:
      return damped([&](size_t i, double) {
        return double{
            Exp32(std::max(static_cast<float>(-KlDivergence(tokens, i) / parameter), -88.0f))};
      });
    case Kind::kInverseEnvelope:
      return damped([&](size_t i, double) {
        return double{Exp32(std::min(-tokens.log_envelopes[i], 0.0f))};
      });
    case Kind::kTailGuard:
      return damped([&](size_t i, double w) {
        const double covered = CoveredMass(tokens, i);
        return covered * a(i, w) + (1.0 - covered) * std::min(w, 1.0 / w);
      });
    case Kind::kBudgetedEnvelope:
      return damped([&](size_t i, double w) {
        if (tokens.ranks[i] >= tokens.top_k) return 0.0;
        return std::min(1.0, w / BudgetedEnvelope(tokens, i, parameter));
      });
    case Kind::kPositionOverlap:
      return each(
          [&](size_t i, double w) { return std::min(w, 1.0) * (1.0 - TotalVariation(tokens, i)); });
    case Kind::kEffectiveSampleSize:
      TemperTo(tokens, parameter, coefficients);
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (outward(i, Ratio(tokens, i))) coefficients[i] *= tokens.acceptance_probabilities[i];
      }
      return;
    case Kind::kByTotalVariation: {
      double sum = 0.0;
      for (size_t i = 0; i < tokens.size(); ++i) sum += TotalVariation(tokens, i);
      if (sum > parameter * static_cast<double>(tokens.size())) return damped(a);
      return each(clipped);
    }
  }
}

}  // namespace sis::study
