// Plain importance sampling on the modified ratio: g(w) = w.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

struct ImportanceSampling {
  absl::Status Validate() const { return absl::OkStatus(); }
  SIS_HOST_DEVICE float Surrogate(const Token& token) const { return token.ratio; }
  SIS_HOST_DEVICE float Coefficient(const Token& token, float /*advantage*/) const {
    return token.ratio;
  }
};

}  // namespace sis
