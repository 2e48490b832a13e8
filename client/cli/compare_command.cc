#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/compare/reports.h"
#include "client/cli/named_file.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/compare/comparison.h"
#include "client/recorded/recorded_log_probs.h"

namespace sis {
namespace {

constexpr char kDetails[] =
    R"(Both files hold log-probs of the same prompts, in the same order: responses of vLLM, SGLang,
llama.cpp or an OpenAI API, as JSON or JSON lines. Compared are the positions up to and including the
first where the sampled tokens differ. No service is asked; decisions are those of one.

Each question about the files is answered with what was measured and the limit for it. Then follow
the decisions, with A as the behaviour policy and B as the current one, and the other way round:

unscored       positions where a file gives no log-prob of the sampled token, or one that its list
               contradicts: left out below
accepted, rejected, outside_top_k
               the others, by decision
k3             w - 1 - log w at the sampled tokens: an estimate of KL(behaviour || current)

A token of V_K that the other file does not list is bounded by the smallest log-prob that it does
list there, and adds nothing to the covered mass. --seed draws the decisions, and changes nothing but
accepted, rejected, the accept rate and D_SIS.

Exit status: 0 no fault found, 1 failed, 2 wrong usage, 3 a fault found. See docs/compare.md.)";

absl::StatusOr<std::vector<RecordedSequence>> ReadFile(const std::string& name) {
  const absl::StatusOr<std::string> text = ReadInput(name);
  if (!text.ok()) return text.status();
  return ParseRecordedLogProbs(*text, name);
}

struct Options {
  std::string a, b, html;
  DecideOptions decide;
  uint32_t positions = 10;
  bool json = false;
};

absl::StatusOr<ExitStatus> RunCompare(const Options& options) {
  const auto a = ReadFile(options.a);
  if (!a.ok()) return a.status();
  const auto b = ReadFile(options.b);
  if (!b.ok()) return b.status();
  const auto comparison = Compare(*a, options.a, *b, options.b, options.decide);
  if (!comparison.ok()) return comparison.status();
  if (!options.html.empty()) {
    absl::Status status = WriteFile(options.html, HtmlReport(*comparison));
    if (!status.ok()) return status;
  }
  std::cout << (options.json ? absl::StrCat(JsonReport(*comparison), "\n")
                             : TextReport(*comparison, options.positions));
  return comparison->diagnosis.fault ? ExitStatus::kFaultFound : ExitStatus::kDone;
}

}  // namespace

void AddCompare(CLI::App& sisctl, LocalAction& action) {
  CLI::App& app = *sisctl.add_subcommand(
      "compare", "Compare two recordings of log-probs, and say why they differ.");
  app.footer(kDetails);
  const auto options = std::make_shared<Options>();
  app.add_option("A", options->a, "A recording, as of the rollout engine; -: standard input.")
      ->required();
  app.add_option("B", options->b, "Another one, as of the trainer.")->required();
  app.add_option("--html", options->html, "Also write a page that needs no other file.");
  AddInteger(app, "--positions", options->positions,
             "List the positions with the largest |log w|, so many.");
  AddInteger(app, "--k", options->decide.top_k,
             "Decide with the k most probable tokens, at most 512; 0: all that are listed.");
  AddInteger(app, "--seed", options->decide.seed, "Keys the accept/reject draws.");
  AddJson(app, options->json);
  app.callback([options, &action] {
    if (options->a == "-" && options->b == "-") {
      throw CLI::ValidationError("A, B", "only one of them can be standard input");
    }
    action = [options] { return RunCompare(*options); };
  });
}

}  // namespace sis
