// The exact backend on vectors: 16 positions at a time, with the best instructions that the machine
// has.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/decide/backend.h"

namespace sis {

class SimdBackend final : public Backend {
 public:
  // For the best target of this machine.
  SimdBackend();

  // One for every target that this machine has, best first. Not thread-safe: steers Highway's
  // global choice. For tests.
  static std::vector<SimdBackend> ForEveryTarget();

  // "cpu/" and Highway's name of the target, such as "cpu/AVX3".
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
