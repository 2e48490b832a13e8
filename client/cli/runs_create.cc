#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/flags.h"
#include "client/cli/json_output.h"
#include "client/cli/subcommand.h"

ABSL_FLAG(uint32_t, vocabulary_size, 0, "Token ids are below this. Required.");
ABSL_FLAG(uint32_t, top_k, 0, "K, the slots per position. Required.");
ABSL_FLAG(double, time_to_live_seconds, 0, "Drop sequences untouched for so long; 0: never.");
ABSL_FLAG(int64_t, max_staleness, -1,
          "Positions more versions behind than this count as missing; -1: no limit.");
ABSL_FLAG(uint64_t, byte_quota, 0, "Bytes that the run may use; 0: the server's budget.");
ABSL_FLAG(std::string, log_prob_encoding, "fixed12",
          "How log-probs are kept: float32 (as sent), float16 or fixed12.");
ABSL_FLAG(std::string, task, "", "Label.");
ABSL_FLAG(std::string, algorithm, "", "Label.");
ABSL_FLAG(std::string, model, "", "Label.");
ABSL_FLAG(uint64_t, incarnation, 0, "0: the present one, or 1 if the run is new.");

namespace sis {
namespace {

// UNSPECIFIED if the flag names none.
v1::LogProbEncoding EncodingFlag() {
  v1::LogProbEncoding encoding = v1::LOG_PROB_ENCODING_UNSPECIFIED;
  v1::LogProbEncoding_Parse(absl::AsciiStrToUpper(absl::GetFlag(FLAGS_log_prob_encoding)),
                            &encoding);
  return encoding;
}

absl::Status CheckFlags(std::span<const std::string>) {
  if (absl::GetFlag(FLAGS_vocabulary_size) == 0) {
    return absl::InvalidArgumentError("--vocabulary_size is required");
  }
  if (absl::GetFlag(FLAGS_top_k) == 0) return absl::InvalidArgumentError("--top_k is required");
  if (EncodingFlag() == v1::LOG_PROB_ENCODING_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log_prob_encoding=", absl::GetFlag(FLAGS_log_prob_encoding),
                     " is not float32, float16 or fixed12"));
  }
  return absl::OkStatus();
}

absl::Status CreateRun(Client& client, std::span<const std::string> arguments) {
  v1::RunConfig config;
  config.set_seed(absl::GetFlag(FLAGS_seed));
  config.set_vocabulary_size(absl::GetFlag(FLAGS_vocabulary_size));
  config.set_top_k(absl::GetFlag(FLAGS_top_k));
  config.set_time_to_live_seconds(absl::GetFlag(FLAGS_time_to_live_seconds));
  if (const int64_t limit = absl::GetFlag(FLAGS_max_staleness); limit >= 0) {
    config.set_max_staleness(limit);
  }
  config.set_byte_quota(absl::GetFlag(FLAGS_byte_quota));
  config.set_log_prob_encoding(EncodingFlag());
  config.set_task(absl::GetFlag(FLAGS_task));
  config.set_algorithm(absl::GetFlag(FLAGS_algorithm));
  config.set_model(absl::GetFlag(FLAGS_model));
  const absl::StatusOr<v1::CreateRunResponse> created =
      client.CreateRun(arguments[0], config, absl::GetFlag(FLAGS_incarnation));
  if (!created.ok()) return created.status();
  if (absl::GetFlag(FLAGS_json)) return PrintJson(*created);
  std::cout << "run " << arguments[0] << ", incarnation " << created->incarnation()
            << (created->created() ? ", created\n" : ", was there\n");
  return absl::OkStatus();
}

}  // namespace

const Subcommand kRunsCreate = {
    .name = "runs create",
    .arguments = {"RUN"},
    .summary = "Open a run, or a new incarnation of it.",
    .details = "Idempotent: with the settings that the run has, nothing changes.",
    .flags = {"seed", "vocabulary_size", "top_k", "time_to_live_seconds", "max_staleness",
              "byte_quota", "log_prob_encoding", "task", "algorithm", "model", "incarnation",
              "json"},
    .check = CheckFlags,
    .run = CreateRun,
};

}  // namespace sis
