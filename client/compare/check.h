// What a check for one fault says: what it measured, where the limit lies and why, and what
// follows.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace sis {

struct Check {
  enum class Outcome {
    kClear,
    kFault,
    kUntested,  // `finding` says why
  };

  std::string name;       // for programs; does not change
  std::string question;   // that it answers
  std::string statistic;  // what `value` measures
  // It is a fault on this side of the limit, the limit included.
  enum class Side { kAbove, kBelow } side = Side::kAbove;
  double limit = 0;
  std::string reason;   // for the limit
  std::string setting;  // what to look at if it is a fault
  Outcome outcome = Outcome::kUntested;
  // NaN if there was no need to measure it.
  double value = std::numeric_limits<double>::quiet_NaN();
  std::string finding = {};
  // The only sequences that have the fault; empty if all have it.
  std::vector<size_t> sequences = {};

  bool fault() const { return outcome == Outcome::kFault; }

  // A value beyond the limit is a fault; `finding` says which.
  void Decide(double measured, const std::string& fault_finding) {
    value = measured;
    const bool beyond = side == Side::kAbove ? measured >= limit : measured <= limit;
    outcome = beyond ? Outcome::kFault : Outcome::kClear;
    finding = beyond ? fault_finding : "";
  }
  void Untested(const std::string& why) {
    outcome = Outcome::kUntested;
    finding = why;
  }
};

}  // namespace sis
