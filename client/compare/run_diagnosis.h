// What is wrong with a run: its server's verdict, and why the two policies of its tokens differ.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/compare/diagnosis.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// How the run is asked, which is one and the same in all calls.
struct RunCalls {
  std::function<absl::StatusOr<v1::Run>()> get_run;
  std::function<absl::StatusOr<v1::InspectRunResponse>()> inspect_run;
  std::function<absl::StatusOr<v1::InspectSequenceResponse>(const v1::SequenceRef&)>
      inspect_sequence;
};

struct RunDiagnosis {
  v1::Run run;                         // with verdict and findings
  std::vector<std::string> sequences;  // whose numbers `tokens` has
  // Of the values that were evaluated last; undecided where none are kept.
  Diagnosis tokens = {};

  bool fault() const { return !run.findings().empty() || tokens.fault; }
};

// Asks for all sequences of the last draw, and for earlier ones as long as there are fewer than
// 4000 positions; those that are forgotten meanwhile are left out, and those that would bring more
// than 131072 positions, with what lies before the first one kept. NotFound if the run is healthy
// and nothing that was evaluated is kept; else errors of the calls.
absl::StatusOr<RunDiagnosis> DiagnoseRun(const RunCalls& calls);

// One object, in one line: run, run_verdict, findings, sequences, and what DiagnosisJson has of the
// tokens, but for `fault` and `undecided`, which are of both.
std::string RunDiagnosisJson(const RunDiagnosis& diagnosis);

}  // namespace sis
