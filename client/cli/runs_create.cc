#include <iostream>
#include <memory>

#include "absl/strings/ascii.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"

namespace sis {
namespace {

struct Options {
  std::string run_id;
  uint64_t incarnation = 0;
  uint64_t seed = 0;
  uint32_t vocabulary_size = 0;
  uint32_t top_k = 0;
  double time_to_live_seconds = 0;
  int64_t max_staleness = -1;
  uint64_t byte_quota = 0;
  bool evict_unread = false;
  std::string log_prob_encoding = "fixed12";
  std::string task, algorithm, model;
  bool json = false;
};

absl::Status CreateRun(Client& client, const Options& options) {
  v1::LogProbEncoding encoding = v1::LOG_PROB_ENCODING_UNSPECIFIED;
  v1::LogProbEncoding_Parse(absl::AsciiStrToUpper(options.log_prob_encoding), &encoding);
  v1::RunConfig config;
  config.set_seed(options.seed);
  config.set_vocabulary_size(options.vocabulary_size);
  config.set_top_k(options.top_k);
  config.set_time_to_live_seconds(options.time_to_live_seconds);
  if (options.max_staleness >= 0) config.set_max_staleness(options.max_staleness);
  config.set_byte_quota(options.byte_quota);
  config.set_evict_unread(options.evict_unread);
  config.set_log_prob_encoding(encoding);
  config.set_task(options.task);
  config.set_algorithm(options.algorithm);
  config.set_model(options.model);
  const absl::StatusOr<v1::CreateRunResponse> created =
      client.CreateRun(options.run_id, config, options.incarnation);
  if (!created.ok()) return created.status();
  if (options.json) return PrintJson(*created);
  std::cout << "run " << options.run_id << ", incarnation " << created->incarnation()
            << (created->created() ? ", created\n" : ", was there\n");
  return absl::OkStatus();
}

}  // namespace

void AddRunsCreate(CLI::App& runs, Action& action) {
  CLI::App& app = *runs.add_subcommand("create", "Open a run, or a new incarnation of it.");
  app.footer("Idempotent: with the settings that the run has, nothing changes.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "Its id.")->required();
  AddInteger(app, "--seed", options->seed, "Keys the accept/reject draws.");
  AddInteger(app, "--vocabulary_size", options->vocabulary_size, "Token ids are below this.")
      ->required()
      ->default_str("")
      ->check(CLI::PositiveNumber);
  AddInteger(app, "--top_k", options->top_k, "K, the slots per position.")
      ->required()
      ->default_str("")
      ->check(CLI::PositiveNumber);
  app.add_option("--time_to_live_seconds", options->time_to_live_seconds,
                 "Drop sequences untouched for so long; 0: never.");
  AddInteger(app, "--max_staleness", options->max_staleness,
             "Positions more versions behind than this count as missing; -1: no limit.");
  AddInteger(app, "--byte_quota", options->byte_quota,
             "Bytes that the run may use; 0: the server's budget.");
  app.add_flag("--evict_unread,!--noevict_unread", options->evict_unread,
               "Where room is short, evict what was least recently used, read or not; else appends "
               "wait before what no trainer has read goes.");
  app.add_option("--log_prob_encoding", options->log_prob_encoding,
                 "How log-probs are kept: as sent, or in fewer bits.")
      ->check(CLI::IsMember({"float32", "float16", "fixed12"}, CLI::ignore_case));
  app.add_option("--task", options->task, "Label.");
  app.add_option("--algorithm", options->algorithm, "Label.");
  app.add_option("--model", options->model, "Label.");
  AddInteger(app, "--incarnation", options->incarnation,
             "0: the present one, or 1 if the run is new.");
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) { return CreateRun(client, *options); };
  });
}

}  // namespace sis
