#include "client/cli/token_means.h"

namespace sis {

TokenMeans MeansOf(const v1::Totals& totals) {
  const auto scored =
      static_cast<double>(totals.accepted() + totals.rejected() + totals.outside_top_k());
  const auto missing = static_cast<double>(totals.missing());
  const auto mean = [&](double sum) { return Mean(sum, scored); };
  return {.tokens = scored + missing,
          .accept_rate = mean(static_cast<double>(totals.accepted())),
          .expected = mean(totals.expected_acceptance()),
          .d = mean(totals.d()),
          .d_sis = mean(totals.d_sis()),
          .log_envelope = mean(totals.log_envelope()),
          .residual_mass = mean(totals.residual_mass()),
          .k3 = mean(totals.k3()),
          .missing = Mean(missing, scored + missing)};
}

}  // namespace sis
