// Evaluate from the first slice to the last, for tests.
#pragma once

#include "absl/status/statusor.h"
#include "server/evaluate/evaluate.h"

namespace sis {

inline absl::StatusOr<v1::EvaluateResponse> EvaluateAtOnce(Run& run, const Backend& backend,
                                                           const v1::EvaluateRequest& request,
                                                           const ReceivedArrays& arrays = {}) {
  const auto call = EvaluateCall::Start({std::shared_ptr<Run>(), &run}, backend, request, arrays);
  if (!call.ok()) return call.status();
  while (!(*call)->done()) {
    if (const auto slice = (*call)->EvaluateSlice(); !slice.ok()) return slice.status();
  }
  const auto response = (*call)->Finish();
  if (!response.ok()) return response.status();
  return **response;
}

}  // namespace sis
