// The exact backend on vectors: 16 positions at a time, with the machine's best instructions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/decide/backend.h"

namespace sis {

class SimdBackend final : public Backend {
 public:
  // Uses the best target of this machine.
  SimdBackend();

  // Returns "cpu/" and Highway's name of the target, such as "cpu/AVX3".
  std::string_view name() const override { return name_; }

  void Evaluate(const EvaluateParameters& parameters,
                std::span<const BackendRange> ranges) const override {
    evaluate_(parameters, ranges);
  }

 private:
  std::string name_;
  void (*evaluate_)(const EvaluateParameters&, std::span<const BackendRange>);
};

}  // namespace sis
