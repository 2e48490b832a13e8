#include "server/messages/cache_messages.h"

#include "absl/strings/str_cat.h"

namespace sis {

static_assert(static_cast<int>(MissingReason::kNeverArrived) == v1::MISSING_REASON_NEVER_ARRIVED);
static_assert(static_cast<int>(MissingReason::kEvicted) == v1::MISSING_REASON_EVICTED);
static_assert(static_cast<int>(MissingReason::kExpired) == v1::MISSING_REASON_EXPIRED);
static_assert(static_cast<int>(MissingReason::kStale) == v1::MISSING_REASON_STALE);
static_assert(static_cast<int>(MissingReason::kReleased) == v1::MISSING_REASON_RELEASED);
static_assert(static_cast<int>(MissingReason::kStoreDown) == v1::MISSING_REASON_STORE_DOWN);
static_assert(static_cast<int>(MissingReason::kCorrupt) == v1::MISSING_REASON_CORRUPT);
static_assert(static_cast<int>(MissingReason::kInvalidLogProb) ==
              v1::MISSING_REASON_INVALID_LOG_PROB);
static_assert(static_cast<int>(MissingReason::kNoLogProb) == v1::MISSING_REASON_NO_LOG_PROB);
static_assert(static_cast<int>(MissingReason::kInfiniteLogProb) ==
              v1::MISSING_REASON_INFINITE_LOG_PROB);
static_assert(static_cast<int>(MissingReason::kUnknownVersion) ==
              v1::MISSING_REASON_UNKNOWN_VERSION);
static_assert(kMissingReasons.size() + 1 == v1::MissingReason_ARRAYSIZE);

// In the API 0 means the default encoding, so its other values are 1 higher.
static_assert(static_cast<int>(BlockEncoding::kFloat32) == 0);
static_assert(v1::LOG_PROB_ENCODING_FLOAT32 + static_cast<int>(BlockEncoding::kFixed16) ==
              v1::LOG_PROB_ENCODING_FIXED16);
static_assert(v1::LogProbEncoding_ARRAYSIZE == v1::LOG_PROB_ENCODING_FIXED16 + 1);

v1::MissingReason ToMessage(MissingReason reason) { return static_cast<v1::MissingReason>(reason); }

absl::StatusOr<RunConfig> FromMessage(const v1::RunConfig& message) {
  RunConfig config{.seed = message.seed(),
                   .vocabulary_size = message.vocabulary_size(),
                   .top_k = message.top_k(),
                   .time_to_live_seconds = message.time_to_live_seconds(),
                   .byte_quota = message.byte_quota(),
                   .task = message.task(),
                   .algorithm = message.algorithm(),
                   .model = message.model(),
                   .evict_unread = message.evict_unread(),
                   .owner = message.owner(),
                   .mass = message.mass()};
  if (message.has_max_staleness()) config.max_staleness = message.max_staleness();
  const int encoding = message.log_prob_encoding();
  if (!v1::LogProbEncoding_IsValid(encoding)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.log_prob_encoding ", encoding, " is not an encoding"));
  }
  if (encoding != v1::LOG_PROB_ENCODING_UNSPECIFIED) {
    config.log_prob_encoding = static_cast<BlockEncoding>(encoding - v1::LOG_PROB_ENCODING_FLOAT32);
  }
  return config;
}

v1::RunConfig ToMessage(const RunConfig& config) {
  v1::RunConfig message;
  message.set_seed(config.seed);
  message.set_vocabulary_size(config.vocabulary_size);
  message.set_top_k(config.top_k);
  message.set_time_to_live_seconds(config.time_to_live_seconds);
  if (config.max_staleness.has_value()) message.set_max_staleness(*config.max_staleness);
  message.set_byte_quota(config.byte_quota);
  message.set_task(config.task);
  message.set_algorithm(config.algorithm);
  message.set_model(config.model);
  message.set_evict_unread(config.evict_unread);
  message.set_owner(config.owner);
  message.set_mass(config.mass);
  message.set_log_prob_encoding(static_cast<v1::LogProbEncoding>(
      v1::LOG_PROB_ENCODING_FLOAT32 + static_cast<int>(config.log_prob_encoding)));
  return message;
}

v1::Run ToMessage(const RunDescription& run) {
  v1::Run message;
  message.set_run_id(run.id);
  message.set_incarnation(run.incarnation);
  *message.mutable_config() = ToMessage(run.config);
  message.set_policy_version(run.policy_version);
  message.set_sequences(run.sequences);
  message.set_unread_sequences(run.unread_sequences);
  message.set_sealed_sequences(run.sealed_sequences);
  message.set_positions(run.positions);
  message.set_bytes(run.bytes);
  message.set_kept_sequences(run.kept_sequences);
  if (run.last_draw.has_value()) message.set_last_draw(*run.last_draw);
  return message;
}

v1::ListSequencesResponse::Sequence ToMessage(const SequenceDescription& sequence) {
  v1::ListSequencesResponse::Sequence message;
  message.mutable_sequence()->set_id(sequence.name.id);
  message.mutable_sequence()->set_attempt(sequence.name.attempt);
  message.set_committed_length(sequence.committed_length);
  message.set_positions(sequence.positions);
  message.set_sealed(sequence.sealed);
  message.set_unread(sequence.unread);
  message.set_policy_version(sequence.newest_version);
  message.set_bytes(sequence.bytes);
  return message;
}

double SecondsSince1970(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace sis
