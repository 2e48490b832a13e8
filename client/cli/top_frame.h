// What `sisctl top` shows at one moment, as lines of text.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/table.h"
#include "client/cli/terminal.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The servers: state, memory, and what they did in the last seconds. `addresses` are their names,
// as many as there are servers, or none for one that needs no name.
std::vector<std::string> ServerLines(
    const std::vector<absl::StatusOr<v1::GetServerResponse>>& servers,
    const std::vector<std::string>& addresses, const Terminal& terminal = {});

using NumberFormat = std::string (*)(double);

// Of a draw, per position; ESS, the effective sample size, as a share of the positions.
Table CorrectionTable(const v1::GetStepResponse& step, NumberFormat share, NumberFormat number);

// All runs, one a line.
std::vector<std::string> RunsLines(const std::vector<v1::Run>& runs, const Terminal& terminal = {});

// One run: its last draws as curves and as a table, newest first, at most `rows` of them, the
// corrections of the last, and the prefix curve of the last that has one.
std::vector<std::string> RunLines(const v1::Run& run, const v1::ListStepsResponse& steps,
                                  size_t rows, const Terminal& terminal = {});

}  // namespace sis
