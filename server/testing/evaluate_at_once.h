// Evaluate from the first slice to the last in one thread, for tests.
#pragma once

#include "absl/status/statusor.h"
#include "server/evaluate/evaluate.h"

namespace sis {

inline absl::StatusOr<v1::EvaluateResponse> EvaluateAtOnce(Run& run, const Backend& backend,
                                                           const v1::EvaluateRequest& request,
                                                           const ReceivedArrays& arrays = {}) {
  const auto call =
      EvaluateCall::Start({std::shared_ptr<Run>(), &run}, backend, request, arrays, /*lanes=*/1);
  if (!call.ok()) return call.status();
  for (size_t group = 0; group < (*call)->groups(); ++group) {
    if (absl::Status status = (*call)->EvaluateGroup(group, 0); !status.ok()) return status;
  }
  const auto response = (*call)->Finish();
  if (!response.ok()) return response.status();
  return **response;
}

}  // namespace sis
