// As if every token were on-policy: g(w) = 1 (the paper's "w/o IS", tab:trick).
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

struct NoCorrection {
  absl::Status Validate() const { return absl::OkStatus(); }
  SIS_HOST_DEVICE float Surrogate(const Token& /*token*/) const { return 1.0f; }
  SIS_HOST_DEVICE float Coefficient(const Token& /*token*/, float /*advantage*/) const {
    return 1.0f;
  }
};

}  // namespace sis
