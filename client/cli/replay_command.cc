#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/options.h"
#include "client/cli/recorded_log_probs.h"
#include "client/cli/recorded_sets.h"
#include "client/cli/replay.h"
#include "client/cli/subcommands.h"

namespace sis {
namespace {

constexpr char kDetails[] =
    R"(Both files hold log-probs of a chat completion as OpenAI, vLLM and llama.cpp write them
({"logprobs": {"content": [...]}}, or a whole response), of the same prompt. The first is streamed
into the service as behaviour; the second is evaluated as the current policy on the common prefix:
the positions up to and including the first where the sampled tokens differ.

positions      the common prefix
unscored       positions where a file gives no log-prob of the sampled token: left out below
accepted, rejected, outside_top_k
               the others, by decision
accept_rate, mean_*
               over scored positions; null in JSON if there are none
d, d_sis       sums, in nats
mean_k3        of w - 1 - log w at the sampled tokens: an estimate of KL(behaviour || current)

A token of V_K that the second file does not list is bounded by the smallest log-prob that it does
list there, and adds nothing to the covered mass. --seed draws the decisions, and changes nothing but
accepted, rejected, accept_rate and d_sis.)";

absl::StatusOr<std::vector<RecordedPosition>> ReadFile(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  std::ostringstream json;
  json << file.rdbuf();
  // Fails if there is nothing to read, as in a directory.
  if (!file.is_open() || json.fail()) {
    return absl::NotFoundError(absl::StrCat(name, ": can't be read, or is empty"));
  }
  return ParseRecordedLogProbs(json.str(), name);
}

struct Row {
  const char* field;  // in JSON
  const char* title;  // in a table
  std::variant<uint64_t, double> number;
};

std::vector<Row> Rows(const ReplaySummary& summary) {
  return {
      {"positions", "positions", summary.positions},
      {"unscored", "unscored", summary.unscored},
      {"accepted", "accepted", summary.accepted},
      {"rejected", "rejected", summary.rejected},
      {"outside_top_k", "outside top-K", summary.outside_top_k},
      {"accept_rate", "accept rate", summary.accept_rate},
      {"mean_acceptance_probability", "mean acceptance probability",
       summary.mean_acceptance_probability},
      {"d", "D (nats)", summary.d},
      {"d_sis", "D_SIS (nats)", summary.d_sis},
      {"mean_k3", "mean k3 (nats)", summary.mean_k3},
      {"mean_log_envelope", "mean log-envelope (nats)", summary.mean_log_envelope},
      {"mean_residual_mass", "mean residual mass", summary.mean_residual_mass},
  };
}

void PrintJson(const ReplaySummary& summary) {
  nlohmann::ordered_json json;
  for (const Row& row : Rows(summary)) {
    std::visit([&](auto number) { json[row.field] = number; }, row.number);
  }
  std::cout << json.dump() << '\n';
}

void PrintTable(const ReplaySummary& summary) {
  std::cout << std::fixed;
  for (const Row& row : Rows(summary)) {
    std::cout << absl::StreamFormat("%-28s ", row.title) << std::setw(12);
    std::visit([](auto number) { std::cout << number << '\n'; }, row.number);
  }
}

struct Options {
  std::string behavior_file, current_file;
  ReplayOptions replay;
  bool json = false;
};

absl::Status RunReplay(Client& client, const Options& options) {
  const auto behavior = ReadFile(options.behavior_file);
  if (!behavior.ok()) return behavior.status();
  const auto current = ReadFile(options.current_file);
  if (!current.ok()) return current.status();
  const auto recordings =
      PairRecordings(*behavior, options.behavior_file, *current, options.current_file);
  if (!recordings.ok()) return recordings.status();
  const auto summary = Replay(client, *recordings, options.replay);
  if (!summary.ok()) return summary.status();
  options.json ? PrintJson(*summary) : PrintTable(*summary);
  return absl::OkStatus();
}

}  // namespace

void AddReplay(CLI::App& sisctl, Action& action) {
  CLI::App& app =
      *sisctl.add_subcommand("replay", "Replay two recordings of an engine through the service.");
  app.footer(kDetails);
  const auto options = std::make_shared<Options>();
  app.add_option("--behavior", options->behavior_file, "The recording of the behaviour policy.")
      ->required();
  app.add_option("--current", options->current_file, "The recording of the current policy.")
      ->required();
  AddInteger(app, "--k", options->replay.top_k,
             "Record only the k most probable tokens; 0: all that are listed.");
  AddInteger(app, "--seed", options->replay.seed, "Keys the accept/reject draws.");
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) { return RunReplay(client, *options); };
  });
}

}  // namespace sis
