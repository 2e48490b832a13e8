// What a check for one fault says: what it measured, where the limit lies and why, and what
// follows.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sis {

struct Check {
  enum class Outcome {
    kClear,
    kFault,
    kUntested,  // `finding` says why
  };

  absl::string_view name;       // for programs; does not change
  absl::string_view question;   // that it answers
  absl::string_view statistic;  // what `value` measures
  // It is a fault on this side of the limit, the limit included.
  enum class Side { kAbove, kBelow } side = Side::kAbove;
  double limit = 0;
  absl::string_view reason;   // for the limit
  absl::string_view setting;  // what to look at if it is a fault
  Outcome outcome = Outcome::kUntested;
  // NaN if there was no need to measure it.
  double value = std::numeric_limits<double>::quiet_NaN();
  std::string finding = {};
  // The only sequences that have the fault; empty if all have it.
  std::vector<size_t> sequences = {};

  bool fault() const { return outcome == Outcome::kFault; }

  // How it ends. A value beyond the limit is a fault; `finding` says which.
  Check& Decide(double measured, const std::string& fault_finding) {
    value = measured;
    const bool beyond = side == Side::kAbove ? measured >= limit : measured <= limit;
    outcome = beyond ? Outcome::kFault : Outcome::kClear;
    finding = beyond ? fault_finding : "";
    return *this;
  }
  Check& Clear() {
    outcome = Outcome::kClear;
    return *this;
  }
  Check& Untested(const std::string& why) {
    outcome = Outcome::kUntested;
    finding = why;
    return *this;
  }
};

}  // namespace sis
