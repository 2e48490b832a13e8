// A steady clock for deadlines and latencies.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sis {

// Returns absl::Now() of the first call plus the time since then. It never jumps, even if the
// machine's clock is set, and may therefore differ from absl::Now(). Use absl::Now() for times that
// people or other processes see, or that outlive the process.
inline absl::Time SteadyNow() {
  struct Start {
    absl::Time time = absl::Now();
    std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
  };
  static const Start start;
  return start.time + absl::FromChrono(std::chrono::steady_clock::now() - start.steady);
}

}  // namespace sis
