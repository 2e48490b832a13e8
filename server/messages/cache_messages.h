// What the cache says, in the words of sis.v1, and back.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/missing.h"
#include "server/cache/run.h"
#include "server/cache/run_config.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// UNSPECIFIED is the default encoding. InvalidArgument if the encoding is none; nothing else is
// checked.
absl::StatusOr<RunConfig> FromMessage(const v1::RunConfig& message);
v1::RunConfig ToMessage(const RunConfig& config);
v1::Run ToMessage(const RunDescription& run);
v1::ListSequencesResponse::Sequence ToMessage(const SequenceDescription& sequence);
v1::MissingReason ToMessage(MissingReason reason);
// As all times of sis.v1: since 1970-01-01 00:00 UTC.
double SecondsSince1970(absl::Time time);

}  // namespace sis
