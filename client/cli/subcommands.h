// What sisctl can do: one function and one file per subcommand. Each function declares the
// subcommand and its options. When the command line names the subcommand, `action` becomes what it
// does, which prints to standard output.
#pragma once

#include <CLI/App.hpp>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/client.h"

namespace sis {

using Action = std::function<absl::Status(Client&)>;

enum class ExitStatus { kDone = 0, kFailed = 1, kWrongUsage = 2, kFaultFound = 3 };
// Of a subcommand that asks no service.
using LocalAction = std::function<absl::StatusOr<ExitStatus>()>;

void AddRuns(CLI::App& sisctl, Action& action);
void AddStep(CLI::App& sisctl, Action& action);
void AddHistory(CLI::App& sisctl, Action& action);
void AddTop(CLI::App& sisctl, Action& action);
void AddSequences(CLI::App& sisctl, Action& action);
void AddShow(CLI::App& sisctl, Action& action);
void AddExport(CLI::App& sisctl, Action& action);
// `fault_found` must outlive the action, which sets it.
void AddDiagnose(CLI::App& sisctl, Action& action, bool& fault_found);
void AddCompare(CLI::App& sisctl, LocalAction& action);
void AddCompletion(CLI::App& sisctl, LocalAction& action);

}  // namespace sis
