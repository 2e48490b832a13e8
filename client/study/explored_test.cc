// Every rule against its formula in float64, from whole distributions.
#include "client/study/explored.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "client/study/random.h"

namespace sis::study {
namespace {

constexpr size_t kVocabulary = 12;
constexpr size_t kTopK = 5;
using Distribution = std::vector<double>;

double Log(double x) { return std::log(x); }

// Two policies at one position, and what was sampled there.
struct Position {
  Distribution q, p;
  std::vector<size_t> set;  // of the most probable under q
  size_t y;
  double w() const { return p[y] / q[y]; }
  bool outside() const { return std::ranges::find(set, y) == set.end(); }
  // Sums over the set, the sampled token outside of it, and all others as one.
  double Sum(const std::function<double(double, double)>& of) const {
    double sum = 0.0, rest_q = 0.0, rest_p = 0.0;
    for (size_t v = 0; v < kVocabulary; ++v) {
      if (v == y || std::ranges::find(set, v) != set.end()) {
        sum += of(q[v], p[v]);
      } else {
        rest_q += q[v];
        rest_p += p[v];
      }
    }
    return sum + of(rest_q, rest_p);
  }
  double total_variation() const {
    return Sum([](double a, double b) { return std::abs(a - b) / 2.0; });
  }
};

struct Batch {
  std::vector<Position> positions;
  std::vector<size_t> lengths;
  std::vector<float> behavior, current, sampled_behavior, sampled_current, a, log_envelopes,
      advantages;
  std::vector<uint16_t> ranks;
  std::vector<double> uniforms;

  void Add(const Position& position, float advantage, double uniform) {
    for (const size_t v : position.set) {
      behavior.push_back(static_cast<float>(Log(position.q[v])));
      current.push_back(static_cast<float>(Log(position.p[v])));
    }
    const auto found = std::ranges::find(position.set, position.y);
    ranks.push_back(position.outside() ? 255 : static_cast<uint16_t>(found - position.set.begin()));
    sampled_behavior.push_back(static_cast<float>(Log(position.q[position.y])));
    sampled_current.push_back(static_cast<float>(Log(position.p[position.y])));
    a.push_back(static_cast<float>(0.1 + 0.8 * uniform));
    log_envelopes.push_back(static_cast<float>(1.5 * uniform - 0.2));
    advantages.push_back(advantage);
    uniforms.push_back(uniform);
    positions.push_back(position);
  }
  std::vector<float> Apply(Explored rule) const {
    std::vector<float> coefficients(positions.size(), NAN);
    rule.Apply({lengths, behavior.size() / positions.size(), behavior, current, sampled_behavior,
                sampled_current, ranks, a, log_envelopes, advantages, uniforms},
               coefficients);
    return coefficients;
  }
};

Position RandomPosition(Random& random, double difference, size_t top_k = kTopK) {
  Position position{.q = {}, .p = {}, .set = std::vector<size_t>(kVocabulary), .y = 0};
  double sum_q = 0.0, sum_p = 0.0;
  for (size_t v = 0; v < kVocabulary; ++v) {
    const double logit = 3.0 * random.InUnitInterval();
    sum_q += position.q.emplace_back(std::exp(logit));
    sum_p += position.p.emplace_back(
        std::exp(logit + difference * (2.0 * random.InUnitInterval() - 1.0)));
  }
  for (double& value : position.q) value /= sum_q;
  for (double& value : position.p) value /= sum_p;
  std::iota(position.set.begin(), position.set.end(), 0);
  std::ranges::sort(position.set, std::greater(), [&](size_t v) { return position.q[v]; });
  position.set.resize(top_k);
  position.y = static_cast<size_t>(random.Below(kVocabulary));
  return position;
}

// Responses of one advantage each, one of them empty, inside and outside of the sets.
Batch RandomBatch(double difference = 1.0) {
  Random random(11);
  Batch batch;
  for (const size_t length : {7u, 0u, 20u, 13u, 40u}) {
    const float advantage = std::array{0.8f, -1.3f, 0.0f}[batch.lengths.size() % 3];
    for (size_t i = 0; i < length; ++i) {
      batch.Add(RandomPosition(random, difference), advantage, random.InUnitInterval());
    }
    batch.lengths.push_back(length);
  }
  return batch;
}

using Kind = Explored::Kind;
using Formula = std::function<double(const Batch&, size_t)>;

void ExpectFormula(Explored rule, const Batch& batch, const Formula& formula) {
  const std::vector<float> coefficients = batch.Apply(rule);
  for (size_t i = 0; i < coefficients.size(); ++i) {
    const double expected = formula(batch, i);
    EXPECT_NEAR(coefficients[i], expected, 1e-5 + 1e-5 * std::abs(expected)) << i;
  }
}

bool Outward(const Batch& batch, size_t i) {
  return batch.advantages[i] * (batch.positions[i].w() - 1.0) > 0.0;
}

Formula Damped(const Formula& factor) {
  return [factor](const Batch& batch, size_t i) {
    const double w = batch.positions[i].w();
    return std::min(w, 1.0) * (Outward(batch, i) ? factor(batch, i) : 1.0);
  };
}

TEST(Explored, DampsByTrueDistances) {
  const Batch batch = RandomBatch();
  ExpectFormula({Kind::kTotalVariation, 0.5}, batch, Damped([](const Batch& of, size_t i) {
                  return std::max(0.0, 1.0 - of.positions[i].total_variation() / 0.5);
                }));
  ExpectFormula({Kind::kKlDivergence, 0.1}, batch, Damped([](const Batch& of, size_t i) {
                  return std::exp(-of.positions[i].Sum([](double q, double p) {
                    return q > 0.0 ? q * Log(q / p) : 0.0;
                  }) / 0.1);
                }));
  ExpectFormula({Kind::kPositionOverlap}, batch, [](const Batch& of, size_t i) {
    return std::min(of.positions[i].w(), 1.0) * (1.0 - of.positions[i].total_variation());
  });
}

TEST(Explored, DampsByTheEnvelopeAndGuardsTheTail) {
  const Batch batch = RandomBatch();
  ExpectFormula({Kind::kInverseEnvelope}, batch, Damped([](const Batch& of, size_t i) {
                  return std::min(1.0, std::exp(-double{of.log_envelopes[i]}));
                }));
  ExpectFormula({Kind::kTailGuard}, batch, Damped([](const Batch& of, size_t i) {
                  double covered = 0.0;
                  for (const size_t v : of.positions[i].set) covered += of.positions[i].p[v];
                  const double w = of.positions[i].w();
                  return covered * of.a[i] + (1.0 - covered) * std::min(w, 1.0 / w);
                }));
}

TEST(Explored, ABudgetedEnvelopeIsTheLeastThatGivesUpNoMore) {
  // What of p acceptance with min(1, w / envelope) cuts off.
  const auto given_up = [](const Position& at, double envelope) {
    double sum = 0.0;
    for (const size_t v : at.set) sum += std::max(0.0, at.p[v] - envelope * at.q[v]);
    return sum;
  };
  size_t whole = 0, between = 0, one = 0;
  for (const double budget : {0.0, 0.05, 1.0}) {
    // By bisection, from what the budget says of it.
    const auto least = [&](const Position& at) {
      double low = 1.0, high = 1e6;
      if (given_up(at, low) <= budget) return low;
      for (int step = 0; step < 200; ++step) {
        const double middle = (low + high) / 2.0;
        (given_up(at, middle) > budget ? low : high) = middle;
      }
      return high;
    };
    const Batch batch = RandomBatch();
    for (const Position& at : batch.positions) {
      const double envelope = least(at);
      double largest = 0.0, mass = 0.0, accepted = 0.0, distance = 0.0;
      for (const size_t v : at.set) {
        largest = std::max(largest, at.p[v] / at.q[v]);
        mass += at.p[v];
        accepted += std::min(at.q[v], at.p[v] / envelope);
      }
      for (const size_t v : at.set) {
        const double law = std::min(at.q[v], at.p[v] / envelope) / accepted;
        distance += std::abs(law - at.p[v] / mass) / 2.0;
      }
      EXPECT_LE(distance, budget / mass + 1e-9);
      whole += envelope > largest - 1e-6 ? 1 : 0;
      between += envelope > 1.0 && envelope < largest - 1e-3 ? 1 : 0;
      one += envelope == 1.0 ? 1 : 0;
    }
    ExpectFormula({Kind::kBudgetedEnvelope, budget}, batch, Damped([&](const Batch& of, size_t i) {
                    const Position& at = of.positions[i];
                    return at.outside() ? 0.0 : std::min(1.0, at.w() / least(at));
                  }));
  }
  EXPECT_GT(whole, 0);
  EXPECT_GT(between, 0);
  EXPECT_GT(one, 0);
}

// As its objective's derivative: r A - |A| q (r - 1)^2 / (2 delta), by differences of log p.
TEST(Explored, DrpoIsTheGradientOfItsObjective) {
  for (const double delta : {12.5, 0.2}) {
    ExpectFormula({Kind::kDrpo, delta}, RandomBatch(), [&](const Batch& of, size_t i) {
      const Position& at = of.positions[i];
      const double advantage = of.advantages[i];
      if (advantage == 0.0) return at.w();
      const auto objective = [&](double log_p) {
        const double r = std::exp(log_p) / at.q[at.y];
        return r * advantage -
               std::abs(advantage) * at.q[at.y] * (r - 1.0) * (r - 1.0) / (2 * delta);
      };
      const double log_p = Log(at.p[at.y]), step = 1e-5;
      return (objective(log_p + step) - objective(log_p - step)) / (2 * step) / advantage;
    });
  }
}

TEST(Explored, VespoWeighsAResponseByItsWholeRatio) {
  for (const double difference : {0.3, 3.0}) {
    const Batch batch = RandomBatch(difference);
    std::vector<double> expected;
    size_t at = 0;
    for (const size_t length : batch.lengths) {
      double ratio = 1.0;
      for (size_t i = at; i < at + length; ++i) ratio *= batch.positions[i].w();
      ratio = std::clamp(ratio, 1e-8, std::exp(20.0));
      for (size_t i = 0; i < length; ++i) {
        const bool positive = batch.advantages[at] >= 0.0f;
        expected.push_back(positive ? ratio * ratio * std::exp(3.0 - 3.0 * ratio)
                                    : ratio * ratio * ratio * std::exp(2.0 - 2.0 * ratio));
      }
      at += length;
    }
    ExpectFormula({Kind::kVespo}, batch, [&](const Batch&, size_t i) { return expected[i]; });
  }
}

TEST(Explored, MasksResponsesThatFellAndShouldFall) {
  size_t all_masked = 0, all_kept = 0;
  for (const double difference : {0.3, 3.0}) {
    const Batch batch = RandomBatch(difference);
    std::vector<double> expected;
    size_t at = 0;
    for (const size_t length : batch.lengths) {
      double product = 1.0;
      for (size_t i = at; i < at + length; ++i) product *= batch.positions[i].w();
      const bool falls = length > 0 && batch.advantages[at] < 0.0f;
      const bool is_masked = falls && product < std::exp(-0.05 * static_cast<double>(length));
      all_masked += is_masked ? 1 : 0;
      all_kept += falls && !is_masked ? 1 : 0;
      for (const size_t end = at + length; at < end; ++at) {
        const double w = batch.positions[at].w();
        const bool clips = Outward(batch, at) && (w > 1.2 || w < 0.8);
        expected.push_back(is_masked || clips ? 0.0 : w);
      }
    }
    ExpectFormula({Kind::kResponseMask, 0.05}, batch,
                  [&](const Batch&, size_t i) { return expected[i]; });
  }
  EXPECT_GT(all_masked, 0);
  EXPECT_GT(all_kept, 0);
}

// Of every token as many draws as show its acceptance to a thousandth.
TEST(Explored, BudgetedRejectionBringsTheBehaviorNearer) {
  constexpr size_t kDraws = 1000;
  Random random(5);
  for (const double lambda : {0.6, 1.0, 1.4}) {
    Position position = RandomPosition(random, 1.0, kVocabulary);
    const auto overlap = [&](size_t v) { return std::min(position.q[v], position.p[v] / lambda); };
    double normalizer = 0.0, kl_before = 0.0, kl_after = 0.0;
    for (size_t v = 0; v < kVocabulary; ++v) normalizer += overlap(v);
    Batch batch;
    for (position.y = 0; position.y < kVocabulary; ++position.y) {
      for (size_t draw = 0; draw < kDraws; ++draw) batch.Add(position, 1.0f, (draw + 0.5) / kDraws);
    }
    batch.lengths = {kVocabulary * kDraws};
    const std::vector<float> weights = batch.Apply({Kind::kBudgetedRejection, lambda});
    const double accepted_share =
        static_cast<double>(std::ranges::count_if(weights, [](float c) { return c > 0.0f; })) /
        static_cast<double>(weights.size());
    for (size_t v = 0; v < kVocabulary; ++v) {
      const auto first = weights.begin() + static_cast<std::ptrdiff_t>(v * kDraws);
      const auto end = first + kDraws;
      const double share =
          static_cast<double>(std::count_if(first, end, [](float c) { return c > 0.0f; })) / kDraws;
      const double w = position.p[v] / position.q[v];
      EXPECT_NEAR(share, std::min(1.0, w / lambda), 1e-3);
      // Tokens here are uniform, not drawn from q, so the batch's acceptance scales Z.
      EXPECT_NEAR(*first, std::min(accepted_share * std::max(lambda, w), 2.0), 1e-4);
      const double after = position.q[v] * share / normalizer;
      kl_before += position.p[v] * Log(position.p[v] / position.q[v]);
      kl_after += position.p[v] * Log(position.p[v] / after);
    }
    EXPECT_LT(kl_after, kl_before - 1e-3) << lambda;
  }
}

TEST(Explored, TheBatchesAcceptanceIsItsBudget) {
  const Batch batch = RandomBatch();
  for (const double budget : {0.5, 0.9}) {
    // The mean of min(1, w / lambda) falls with lambda.
    const auto acceptance = [&](double lambda) {
      double sum = 0.0;
      for (const Position& of : batch.positions) sum += std::min(1.0, of.w() / lambda);
      return sum / static_cast<double>(batch.positions.size());
    };
    double low = 1e-6, high = 1e6;
    for (int step = 0; step < 200; ++step) {
      (acceptance(std::sqrt(low * high)) > budget ? low : high) = std::sqrt(low * high);
    }
    const std::vector<float> expected = batch.Apply({Kind::kBudgetedRejection, low});
    const std::vector<float> weights = batch.Apply({Kind::kAcceptanceBudget, budget});
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 1e-4) << i;
    EXPECT_NEAR(acceptance(low), budget, 1e-6);
  }
}

TEST(Explored, TempersUntilTheWeightsAreEvenEnough) {
  const auto effective_share = [](const std::vector<double>& weights) {
    double sum = 0.0, squares = 0.0;
    for (const double weight : weights) {
      sum += weight;
      squares += weight * weight;
    }
    return sum * sum / squares / static_cast<double>(weights.size());
  };
  for (const double difference : {0.05, 1.0, 3.0}) {
    const Batch batch = RandomBatch(difference);
    const std::vector<float> coefficients = batch.Apply({Kind::kEffectiveSampleSize, 0.9});
    std::vector<double> ratios, weights;
    for (size_t i = 0; i < coefficients.size(); ++i) {
      ratios.push_back(batch.positions[i].w());
      weights.push_back(coefficients[i] / (Outward(batch, i) ? batch.a[i] : 1.0));
    }
    EXPECT_NEAR(effective_share(weights), std::max(0.9, effective_share(ratios)), 1e-4);
    // One power of all ratios.
    const double beta = Log(weights[0]) / Log(ratios[0]);
    EXPECT_LE(beta, 1.0 + 1e-4);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_NEAR(Log(weights[i]), beta * Log(ratios[i]), 1e-3) << i;
    }
  }
}

TEST(Explored, ClipsWhereTheEngineAgreesAndDampsWhereNot) {
  const Batch batch = RandomBatch();
  double mean = 0.0;
  for (const Position& of : batch.positions) {
    mean += of.total_variation() / static_cast<double>(batch.positions.size());
  }
  ExpectFormula({Kind::kByTotalVariation, mean - 1e-3}, batch,
                Damped([](const Batch& of, size_t i) { return double{of.a[i]}; }));
  ExpectFormula({Kind::kByTotalVariation, mean + 1e-3}, batch, [](const Batch& of, size_t i) {
    const double w = of.positions[i].w();
    return Outward(of, i) && (w > 1.2 || w < 0.8) ? 0.0 : w;
  });
}

}  // namespace
}  // namespace sis::study
