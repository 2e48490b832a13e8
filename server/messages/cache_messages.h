// Converts between the cache's types and messages of sis.v1.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/missing.h"
#include "server/cache/run.h"
#include "server/cache/run_config.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Replaces LOG_PROB_ENCODING_UNSPECIFIED by the default. Returns InvalidArgument for an unknown
// encoding; checks nothing else.
absl::StatusOr<RunConfig> FromMessage(const v1::RunConfig& message);
v1::RunConfig ToMessage(const RunConfig& config);
v1::Run ToMessage(const RunDescription& run);
v1::ListSequencesResponse::Sequence ToMessage(const SequenceDescription& sequence);
v1::MissingReason ToMessage(MissingReason reason);
// Returns seconds since 1970-01-01 00:00 UTC, as all times of sis.v1.
double SecondsSince1970(absl::Time time);

}  // namespace sis
