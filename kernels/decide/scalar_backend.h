// The exact backend, one position at a time: what every faster one must equal byte for byte.
#pragma once

#include "kernels/decide/backend.h"

namespace sis {

class ScalarBackend final : public Backend {
 public:
  std::string_view name() const override { return "scalar"; }
  void Evaluate(const EvaluateParameters& parameters,
                std::span<const BackendRange> ranges) const override;
};

}  // namespace sis
