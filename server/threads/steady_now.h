// A clock for what lasts: deadlines, patience, latencies.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sis {

// What absl::Now() said when this was first called, and what has passed since. It never jumps,
// whoever sets the machine's clock meanwhile, so it may differ from absl::Now(): times that people
// or other processes see, or that outlive the process, are absl::Now()'s.
inline absl::Time SteadyNow() {
  struct Start {
    absl::Time time = absl::Now();
    std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
  };
  static const Start start;
  return start.time + absl::FromChrono(std::chrono::steady_clock::now() - start.steady);
}

}  // namespace sis
