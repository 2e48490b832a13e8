// Runs a complete Evaluate in one thread, for tests.
#pragma once

#include "absl/status/statusor.h"
#include "server/evaluate/evaluate.h"

namespace sis {

inline absl::StatusOr<v1::EvaluateResponse> EvaluateAtOnce(Run& run, const Backend& backend,
                                                           const v1::EvaluateRequest& request) {
  v1::EvaluateResponse response;
  const auto call =
      EvaluateCall::Start({std::shared_ptr<Run>(), &run}, backend, request, response, /*lanes=*/1);
  if (!call.ok()) return call.status();
  for (size_t group = 0; group < (*call)->groups(); ++group) {
    if (absl::Status status = (*call)->EvaluateGroup(group, 0); !status.ok()) return status;
  }
  if (absl::Status status = (*call)->Finish(); !status.ok()) return status;
  return response;
}

}  // namespace sis
