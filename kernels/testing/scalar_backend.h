// The reference backend, one position at a time. Faster backends must return the same bytes.
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
