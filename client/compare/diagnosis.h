// Why two recordings differ: all checks, in an order in which each may rely on those before it.
#pragma once

#include <string>
#include <vector>

#include "client/compare/check.h"
#include "client/compare/compared_positions.h"
#include "client/compare/difference_size.h"
#include "client/compare/left_out.h"
#include "client/compare/profile.h"
#include "client/recorded/recorded_sets.h"

namespace sis {

struct Diagnosis {
  std::vector<Check> checks = {};
  DifferenceSize size;
  Profile profile;
  std::vector<LeftOut> left_out;
  bool fault = false;
  // None was found, but there is too little to say that there is none.
  bool undecided = false;
  // One paragraph for each fault; else what the differences are like. Then one about what is left
  // out, if anything is.
  std::vector<std::string> verdict = {};
};

// Sequences that have a fault which most do not have are told apart, and the others are judged
// without them. `decisions` are those of A as the behaviour policy, `whole` all of both.
Diagnosis Diagnose(const RecordedPair& pair, const Part& whole, const Decisions& decisions);

// The same of tokens that a run has recorded, A, and evaluated, B: questions that only files have
// are left out, and others asked, of mass, age and padding. `decisions` are the run's own.
// `filter`: the recorded sampling's, like "top_p 0.8", or empty. Differences that it explains are
// not blamed on anything else.
Diagnosis DiagnoseRun(const RecordedPair& pair, const Decisions& decisions,
                      std::vector<LeftOut> left_out, const std::string& filter);

}  // namespace sis
