// What totals come to per token.
#pragma once

#include <limits>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// NaN over nothing.
inline double Mean(double sum, double count) {
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

// Of scored tokens, but for `missing`, which is a share of all; nats, or shares.
struct TokenMeans {
  double tokens;  // how many, missing ones too
  double accept_rate, expected, d, d_sis, log_envelope, residual_mass, k3, missing;
};

TokenMeans MeansOf(const v1::Totals& totals);

}  // namespace sis
