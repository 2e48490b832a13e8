#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "client/cli/asked_servers.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/table.h"
#include "client/cli/terminal.h"
#include "client/cli/verdict_text.h"

namespace sis {
namespace {

// Of all four, as only one of them is named.
struct Options {
  RunRef run;
  bool json = false;
  uint64_t seed = 0;
  uint32_t vocabulary_size = 0;
  uint32_t top_k = 0;
  double mass = 0;
  double time_to_live_seconds = 0;
  int64_t max_staleness = -1;
  uint64_t byte_quota = 0;
  bool evict_unread = false;
  std::string log_prob_encoding = "fixed12";
  std::string task, algorithm, model;
};

std::vector<Cell> RowOf(const v1::Run& run) {
  const std::string& owner = run.config().owner();
  return {
      {"RUN", run.run_id(), {.left = true}},
      {"VERDICT", VerdictText(run.verdict()), {.width = 9, .left = true}, ColourOf(run.verdict())},
      {"INCARNATION", std::to_string(run.incarnation()), {.goes = 4}},
      {"VERSION", std::to_string(run.policy_version()), {.goes = 1}},
      {"SEQUENCES", std::to_string(run.sequences())},
      {"POSITIONS", std::to_string(run.positions()), {.goes = 2}},
      {"BYTES", std::to_string(run.bytes())},
      {"LAST DRAW", run.has_last_draw() ? std::to_string(run.last_draw()) : "-"},
      {"OWNER", owner.empty() ? "-" : owner, {.left = true, .goes = 5}},
      {"TASK", run.config().task(), {.left = true, .goes = 3}}};
}

absl::Status ListRuns(Client& client, const Options& options) {
  const absl::StatusOr<v1::ListRunsResponse> response = client.ListRuns();
  if (!response.ok()) return response.status();
  if (options.json) return PrintJson(*response);
  Table table(RowOf({}));
  for (const v1::Run& run : WorstFirst(*response)) table.AddRow(RowOf(run));
  table.Print();
  return absl::OkStatus();
}

template <typename T>
void PrintRow(absl::string_view name, const T& value) {
  std::cout << absl::StreamFormat("%-22s ", name) << value << '\n';
}

absl::Status GetRun(Client& client, const Options& options) {
  const absl::StatusOr<v1::Run> run = client.GetRun(options.run.run_id);
  if (!run.ok()) return run.status();
  if (options.json) return PrintJson(*run);
  const v1::RunConfig& config = run->config();
  PrintRow("run", run->run_id());
  PrintRow("incarnation", run->incarnation());
  PrintRow("seed", config.seed());
  PrintRow("vocabulary size", config.vocabulary_size());
  PrintRow("top-K", config.top_k());
  PrintRow("mass", config.mass());
  PrintRow("time to live (s)", config.time_to_live_seconds());
  if (config.has_max_staleness()) PrintRow("maximum staleness", config.max_staleness());
  PrintRow("byte quota", config.byte_quota());
  PrintRow("evicts unread", config.evict_unread() ? "yes" : "no");
  PrintRow("log-prob encoding",
           absl::AsciiStrToLower(v1::LogProbEncoding_Name(config.log_prob_encoding())));
  PrintRow("task", config.task());
  PrintRow("algorithm", config.algorithm());
  PrintRow("model", config.model());
  if (!config.owner().empty()) PrintRow("owner", config.owner());
  PrintRow("policy version", run->policy_version());
  PrintRow("sequences", run->sequences());
  PrintRow("sealed sequences", run->sealed_sequences());
  PrintRow("unread sequences", run->unread_sequences());
  PrintRow("positions", run->positions());
  PrintRow("bytes", run->bytes());
  PrintRow("leases", run->leases());
  if (run->has_last_draw()) PrintRow("last draw", run->last_draw());
  const Terminal terminal = Terminal::OfStandardOutput();
  PrintRow("verdict", terminal.Painted(VerdictText(run->verdict()), ColourOf(run->verdict())));
  for (const std::string& line : FindingLines(*run, terminal)) std::cout << line << '\n';
  return absl::OkStatus();
}

absl::Status CreateRun(Client& client, const Options& options) {
  v1::LogProbEncoding encoding = v1::LOG_PROB_ENCODING_UNSPECIFIED;
  v1::LogProbEncoding_Parse(absl::AsciiStrToUpper(options.log_prob_encoding), &encoding);
  v1::RunConfig config;
  config.set_seed(options.seed);
  config.set_vocabulary_size(options.vocabulary_size);
  config.set_top_k(options.top_k);
  config.set_mass(options.mass);
  config.set_time_to_live_seconds(options.time_to_live_seconds);
  if (options.max_staleness >= 0) config.set_max_staleness(options.max_staleness);
  config.set_byte_quota(options.byte_quota);
  config.set_evict_unread(options.evict_unread);
  config.set_log_prob_encoding(encoding);
  config.set_task(options.task);
  config.set_algorithm(options.algorithm);
  config.set_model(options.model);
  const absl::StatusOr<v1::CreateRunResponse> created =
      client.CreateRun(options.run.run_id, config, options.run.incarnation);
  if (!created.ok()) return created.status();
  if (options.json) return PrintJson(*created);
  std::cout << "run " << options.run.run_id << ", incarnation " << created->incarnation()
            << (created->created() ? ", created\n" : ", was there\n");
  return absl::OkStatus();
}

absl::Status DeleteRun(Client& client, const Options& options) {
  const absl::StatusOr<bool> deleted = client.DeleteRun(options.run);
  if (!deleted.ok()) return deleted.status();
  if (options.json) {
    v1::DeleteRunResponse response;
    response.set_deleted(*deleted);
    return PrintJson(response);
  }
  std::cout << "run " << options.run.run_id << (*deleted ? ", deleted\n" : ", was not there\n");
  return absl::OkStatus();
}

}  // namespace

void AddRuns(CLI::App& sisctl, Action& action) {
  CLI::App& runs = *sisctl.add_subcommand("runs", "Runs of the service.");
  runs.require_subcommand(0, 1);
  const auto options = std::make_shared<Options>();
  const auto add = [&](const char* name, const char* description,
                       absl::Status (*act)(Client&, const Options&), bool shows) -> CLI::App& {
    CLI::App& app = *runs.add_subcommand(name, description);
    app.callback([options, act, shows, &action] {
      action = [options, act, shows](Client& client) {
        const absl::Status status = act(client, *options);
        return shows ? FromEveryServer(client, status) : status;
      };
    });
    return app;
  };
  const auto add_id = [&](CLI::App& app) {
    app.add_option("RUN", options->run.run_id, "Its id.")->required();
  };

  CLI::App& list = add("list", "List the runs and what they hold.", &ListRuns, /*shows=*/true);
  AddJson(list, options->json);

  CLI::App& get = add("get", "Show one run.", &GetRun, /*shows=*/true);
  add_id(get);
  AddJson(get, options->json);

  CLI::App& create =
      add("create", "Open a run, or a new incarnation of it.", &CreateRun, /*shows=*/false);
  create.footer("Idempotent: with the settings that the run has, nothing changes.");
  add_id(create);
  AddInteger(create, "--seed", options->seed, "Keys the accept/reject draws.");
  AddInteger(create, "--vocabulary_size", options->vocabulary_size, "Token ids are below this.")
      ->required()
      ->default_str("")
      ->check(CLI::PositiveNumber);
  AddInteger(create, "--top_k", options->top_k, "K, the slots per position.")
      ->required()
      ->default_str("")
      ->check(CLI::PositiveNumber);
  create.add_option("--mass", options->mass,
                    "Sets are cut where they hold so much of the probability; 0: never.");
  create.add_option("--time_to_live_seconds", options->time_to_live_seconds,
                    "Drop sequences untouched for so long; 0: never.");
  AddInteger(create, "--max_staleness", options->max_staleness,
             "Positions more versions behind than this count as missing; -1: no limit.");
  AddInteger(create, "--byte_quota", options->byte_quota,
             "Bytes that the run may use; 0: the server's budget.");
  create.add_flag(
      "--evict_unread,!--noevict_unread", options->evict_unread,
      "Where room is short, evict what was least recently used, read or not; else appends "
      "wait before what no trainer has read goes.");
  create
      .add_option("--log_prob_encoding", options->log_prob_encoding,
                  "How log-probs are kept: as sent, or in fewer bits.")
      ->check(CLI::IsMember({"float32", "float16", "fixed12"}, CLI::ignore_case));
  create.add_option("--task", options->task, "Label.");
  create.add_option("--algorithm", options->algorithm, "Label.");
  create.add_option("--model", options->model, "Label.");
  AddInteger(create, "--incarnation", options->run.incarnation,
             "0: the present one, or 1 if the run is new.");
  AddJson(create, options->json);

  CLI::App& remove =
      add("delete", "Forget a run with all that is held of it.", &DeleteRun, /*shows=*/false);
  remove.footer("Idempotent. With several replicas all must answer.");
  add_id(remove);
  AddInteger(remove, "--incarnation", options->run.incarnation,
             "Only this one; 0: whichever is present.");
  AddJson(remove, options->json);
}

}  // namespace sis
