#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_join.h"
#include "client/cli/asked_servers.h"
#include "client/cli/compare/reports.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/verdict_text.h"
#include "client/compare/run_diagnosis.h"

namespace sis {
namespace {

constexpr char kDetails[] =
    R"(First the server's verdict, as of sisctl runs get. Then the last evaluated values of a sample
of sequences, which the server keeps (--inspected_bytes), go through the questions of sisctl
compare: A is the behaviour policy, as the run recorded it, B the current one, as it was evaluated.
Sequences of the last draw are asked, and of earlier ones as long as there are fewer than 4000
positions. Evaluations in the form REDUCED tell nothing of single recorded tokens, and leave most
questions open.

Exit status: 0 no fault found and a healthy verdict, 1 failed, 2 wrong usage, 3 else. See
docs/compare.md.)";

struct Options {
  std::string run_id;
  bool json = false;
};

RunCalls CallsOf(Client& client, const std::string& run_id) {
  return {.get_run = [&client, run_id] { return FindRun(client, run_id); },
          .inspect_run = [&client, run_id] { return client.InspectRun({run_id}); },
          .inspect_sequence =
              [&client, run_id](const v1::SequenceRef& sequence) {
                return client.InspectSequence({run_id}, {sequence.id(), sequence.attempt()});
              }};
}

absl::Status Diagnose(Client& client, const Options& options, bool& fault_found) {
  const absl::StatusOr<RunDiagnosis> diagnosis = DiagnoseRun(CallsOf(client, options.run_id));
  if (!diagnosis.ok()) return diagnosis.status();
  fault_found = diagnosis->fault();
  if (options.json) {
    std::cout << RunDiagnosisJson(*diagnosis) << '\n';
    return absl::OkStatus();
  }
  std::cout << "by the rules of the alerts: " << VerdictText(diagnosis->run.verdict()) << '\n';
  for (const std::string& line : FindingLines(diagnosis->run)) std::cout << line << '\n';
  if (diagnosis->sequences.empty()) {
    std::cout << '\n' << absl::StrJoin(diagnosis->tokens.verdict, "\n") << '\n';
    return absl::OkStatus();
  }
  std::cout << "\nA: the behaviour policy of run " << options.run_id << ", as recorded\n"
            << "B: the current policy, as last evaluated\n"
            << "sequences: " << diagnosis->sequences.size() << "\n\n"
            << DiagnosisText(diagnosis->tokens) << "sequences in the order of their numbers: "
            << absl::StrJoin(diagnosis->sequences, ", ") << '\n';
  return absl::OkStatus();
}

}  // namespace

void AddDiagnose(CLI::App& sisctl, Action& action, bool& fault_found) {
  CLI::App& app =
      *sisctl.add_subcommand("diagnose", "Say what is wrong with a run, and what to look at.");
  app.footer(kDetails);
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  AddJson(app, options->json);
  app.callback([options, &action, &fault_found] {
    action = [options, &fault_found](Client& client) {
      return FromEveryServer(client, Diagnose(client, *options, fault_found));
    };
  });
}

}  // namespace sis
