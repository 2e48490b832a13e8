// How runs do, for people.
#pragma once

#include <string>
#include <vector>

#include "client/cli/terminal.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// A sign and a word; "-" if the server is older than verdicts.
std::string VerdictText(v1::Verdict verdict);

Colour ColourOf(v1::Verdict verdict);

// What is wrong with the run and what to do, the worst first; nothing if it is healthy.
std::vector<std::string> FindingLines(const v1::Run& run, const Terminal& terminal = {});

// The same runs, those that do worst first, else as they were.
std::vector<v1::Run> WorstFirst(const v1::ListRunsResponse& runs);

// Why positions are missing: "never arrived" of NEVER_ARRIVED.
std::string ReasonText(v1::MissingReason reason);

}  // namespace sis
