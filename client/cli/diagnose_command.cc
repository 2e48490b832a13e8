#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/compare/diagnosis.h"
#include "client/cli/compare/reports.h"
#include "client/cli/find_run.h"
#include "client/cli/inspected_tokens.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/unanswered.h"

namespace sis {
namespace {

constexpr char kDetails[] =
    R"(The last evaluated values of a sample of sequences, which the server keeps (--inspected_bytes),
go through the questions of sisctl compare: A is the behaviour policy, as the run recorded it, B the
current one, as it was evaluated. Sequences of the last draw are asked, and of earlier ones as long
as there are fewer than 4000 positions. Evaluations in the form REDUCED tell nothing of single
recorded tokens, and leave most questions open.

Exit status: 0 no fault found, 1 failed, 2 wrong usage, 3 a fault found. See docs/compare.md.)";

struct Options {
  std::string run_id;
  bool json = false;
};

std::string NameOf(const v1::SequenceRef& sequence) {
  if (sequence.attempt() == 0) return sequence.id();
  return absl::StrCat(sequence.id(), " attempt ", sequence.attempt());
}

struct Inspected {
  std::vector<std::string> names;
  std::vector<v1::InspectSequenceResponse> sequences;
};

// Sequences that are forgotten between the calls are left out.
absl::StatusOr<Inspected> Inspect(Client& client, const std::string& run_id) {
  constexpr uint64_t kEnoughPositions = 4000;
  const absl::StatusOr<v1::Run> run = FindRun(client, run_id);
  if (!run.ok()) return run.status();
  const absl::StatusOr<v1::InspectRunResponse> overview = client.InspectRun({run_id});
  if (!overview.ok()) return overview.status();
  std::vector<v1::InspectRunResponse::InspectedSequence> kept(overview->sequences().begin(),
                                                              overview->sequences().end());
  // The last draw need not have the highest number: a training goes on from an earlier step.
  const auto is_last = [&](const auto& sequence) { return sequence.draw() == run->last_draw(); };
  std::stable_sort(kept.begin(), kept.end(), [&](const auto& a, const auto& b) {
    return std::pair(is_last(a), a.draw()) > std::pair(is_last(b), b.draw());
  });
  Inspected inspected;
  uint64_t positions = 0;
  for (const auto& sequence : kept) {
    if (positions >= kEnoughPositions && !is_last(sequence)) break;
    const SequenceRef name{sequence.sequence().id(), sequence.sequence().attempt()};
    absl::StatusOr<v1::InspectSequenceResponse> response = client.InspectSequence({run_id}, name);
    if (absl::IsNotFound(response.status())) continue;
    if (!response.ok()) return response.status();
    positions += sequence.positions();
    inspected.names.push_back(NameOf(sequence.sequence()));
    inspected.sequences.push_back(*std::move(response));
  }
  if (!inspected.sequences.empty()) return inspected;
  return absl::NotFoundError(absl::StrCat(
      "of run ", run_id, " nothing has been evaluated, or nothing is kept (--inspected_bytes)"));
}

absl::Status RunDiagnose(Client& client, const Options& options, bool& fault_found) {
  const absl::StatusOr<Inspected> inspected = Inspect(client, options.run_id);
  if (!inspected.ok()) return inspected.status();
  absl::StatusOr<InspectedTokens> tokens = ReadInspectedTokens(inspected->sequences);
  if (!tokens.ok()) return tokens.status();
  const Diagnosis diagnosis =
      DiagnoseRun(tokens->pair, tokens->decisions, std::move(tokens->left_out));
  fault_found = diagnosis.fault;
  if (options.json) {
    std::cout << DiagnosisJson(diagnosis, options.run_id, inspected->names) << '\n';
    return absl::OkStatus();
  }
  std::cout << "A: the behaviour policy of run " << options.run_id << ", as recorded\n"
            << "B: the current policy, as last evaluated\n"
            << inspected->names.size() << " sequences\n\n"
            << DiagnosisText(diagnosis)
            << "sequences in the order of their numbers: " << absl::StrJoin(inspected->names, ", ")
            << '\n';
  return absl::OkStatus();
}

}  // namespace

void AddDiagnose(CLI::App& sisctl, Action& action, bool& fault_found) {
  CLI::App& app = *sisctl.add_subcommand(
      "diagnose", "Say why a run's two policies differ, and what to look at.");
  app.footer(kDetails);
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  AddJson(app, options->json);
  app.callback([options, &action, &fault_found] {
    action = [options, &fault_found](Client& client) {
      return FromEveryServer(client, RunDiagnose(client, *options, fault_found));
    };
  });
}

}  // namespace sis
