// The verdict on a run: healthy, or findings with reasons and actions.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/cache/missing.h"
#include "server/cache/recent_events.h"
#include "server/cache/run.h"
#include "server/observe/rules.h"

namespace sis {

// Totals of several draws, in float64, because they outgrow the fixed point of one draw's sums.
struct DrawTotals {
  double scored = 0;
  double accepted = 0;
  double missing = 0;
  double envelope_violations = 0;
  double d = 0;
  double d_sis = 0;
  double residual_mass = 0;
  // Scored tokens of the current version or ahead of it.
  double fresh = 0;
  double fresh_d = 0;
  std::array<double, kMissingReasons.size() + 1> missing_by_reason = {};
  // Sums of the applied correction.
  double weight = 0;
  double weight_squared = 0;

  DrawTotals& operator+=(const Evaluated& evaluated);
};

// All inputs of a verdict.
struct RunNumbers {
  DrawTotals last;    // the last draws
  DrawTotals before;  // the earlier draws that are kept
  RecentEvents::Events events;
  absl::Time now;
  double fullness = 0;  // used share of quota or cache, the larger; 0 with a store
};

RunNumbers NumbersOf(const Run& run);

struct Finding {
  RuleId id;
  std::string reason;

  const Rule& rule() const { return kRules[static_cast<size_t>(id)]; }
};

// Returns the findings, worst first.
std::vector<Finding> FindingsIn(const RunNumbers& numbers);

// Returns the verdict of the worst finding, which is the first; kHealthy if there is none.
Verdict VerdictOf(const std::vector<Finding>& findings);

}  // namespace sis
