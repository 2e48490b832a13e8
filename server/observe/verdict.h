// Whether a run is healthy; if not, why, and what to do.
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

// What several draws come to. In doubles, as sums of several outgrow the fixed point of one.
struct DrawTotals {
  double scored = 0;
  double accepted = 0;
  double missing = 0;
  double envelope_violations = 0;
  double d = 0;
  double d_sis = 0;
  double residual_mass = 0;
  // Of the current version, or ahead of it.
  double fresh = 0;
  double fresh_d = 0;
  std::array<double, kMissingReasons.size() + 1> missing_by_reason = {};
  // Of the correction applied.
  double weight = 0;
  double weight_squared = 0;

  DrawTotals& operator+=(const Evaluated& evaluated);
};

// All that a verdict depends on.
struct RunNumbers {
  DrawTotals last;    // draws
  DrawTotals before;  // of those kept
  RecentEvents::Events events;
  absl::Time now;
  double fullness = 0;  // of quota or cache, whichever is fuller; 0 where a store keeps all
};

RunNumbers NumbersOf(const Run& run);

struct Finding {
  RuleId id;
  std::string reason;

  const Rule& rule() const { return kRules[static_cast<size_t>(id)]; }
};

// The worst first.
std::vector<Finding> FindingsIn(const RunNumbers& numbers);

// That of the worst.
Verdict VerdictOf(const std::vector<Finding>& findings);

}  // namespace sis
