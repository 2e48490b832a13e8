// Sums over many draws: those of one draw, in numbers that these do not outgrow.
#pragma once

#include <concepts>
#include <cstdint>

#include "kernels/decide/statistics.h"
#include "kernels/numerics/sums.h"

namespace sis {

// Counts as they are, the sums of nats and shares.
struct LongSums {
  int64_t accepted = 0;
  int64_t rejected = 0;
  int64_t outside_top_k = 0;
  int64_t missing = 0;
  int64_t masked = 0;
  int64_t envelope_violations = 0;
  double d = 0;
  double d_sis = 0;
  double log_envelope = 0;
  double residual_mass = 0;
  double acceptance_probability = 0;
  double expected_acceptance = 0;
  double k3 = 0;
  double total_variation = 0;

  // Calls visit with the same field of each, a LongSums or a Sums, in the order of a stored history
  // (docs/page_format.md).
  template <typename Visit, typename... Each>
  static void ForEachField(const Visit& visit, Each&... sums) {
    visit(sums.accepted...);
    visit(sums.rejected...);
    visit(sums.outside_top_k...);
    visit(sums.missing...);
    visit(sums.masked...);
    visit(sums.envelope_violations...);
    visit(sums.d...);
    visit(sums.d_sis...);
    visit(sums.log_envelope...);
    visit(sums.residual_mass...);
    visit(sums.acceptance_probability...);
    visit(sums.expected_acceptance...);
    visit(sums.k3...);
    visit(sums.total_variation...);
  }

  LongSums() = default;
  explicit LongSums(const Sums& sums) {
    const auto set = [](auto& to, int64_t from) {
      if constexpr (std::same_as<decltype(to), double&>) {
        to = FromFixed(from);
      } else {
        to = from;
      }
    };
    ForEachField(set, *this, sums);
  }
  LongSums& operator+=(const LongSums& other) {
    ForEachField([](auto& to, const auto& from) { to += from; }, *this, other);
    return *this;
  }
  friend bool operator==(const LongSums&, const LongSums&) = default;
};

// A CorrectionSums: what a correction comes to.
struct CorrectionTotals {
  double positions = 0;
  double touched = 0;
  double zeroed = 0;
  double weight = 0;
  double weight_squared = 0;
  double abs_log_weight = 0;  // nats
  double gradient_mass = 0;

  // As LongSums.
  template <typename Visit, typename... Each>
  static void ForEachField(const Visit& visit, Each&... totals) {
    visit(totals.positions...);
    visit(totals.touched...);
    visit(totals.zeroed...);
    visit(totals.weight...);
    visit(totals.weight_squared...);
    visit(totals.abs_log_weight...);
    visit(totals.gradient_mass...);
  }

  CorrectionTotals& operator+=(const CorrectionSums& sums) {
    return *this += CorrectionTotals{.positions = static_cast<double>(sums.positions),
                                     .touched = static_cast<double>(sums.touched),
                                     .zeroed = static_cast<double>(sums.zeroed),
                                     .weight = FromCountedWeight(sums.weight),
                                     .weight_squared = FromCountedWeight(sums.weight_squared),
                                     .abs_log_weight = FromFixed(sums.abs_log_weight),
                                     .gradient_mass = FromCountedWeight(sums.gradient_mass)};
  }
  CorrectionTotals& operator+=(const CorrectionTotals& other) {
    ForEachField([](double& to, double from) { to += from; }, *this, other);
    return *this;
  }
  friend bool operator==(const CorrectionTotals&, const CorrectionTotals&) = default;
};

}  // namespace sis
