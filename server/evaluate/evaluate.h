// Evaluate: from a request to decisions, ratios and sums.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/decide/backend.h"
#include "server/cache/run.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// One Evaluate of the API, slice by slice, so that it can be given up, or make way for others, in
// between. Used by one thread at a time. On an error nothing has changed, but for the lease and the
// sequences that were named: they count as used.
class EvaluateCall {
 public:
  // Checks the request. `arrays` are the request's; these and the other arguments must outlive the
  // object.
  static absl::StatusOr<EvaluateCall> Start(Run& run, const Backend& backend,
                                            const v1::EvaluateRequest& request,
                                            const ReceivedArrays& arrays);
  ~EvaluateCall();
  EvaluateCall(EvaluateCall&&) noexcept;

  // How much there is to read of a position.
  size_t values_per_position() const;
  // Whether every slice has been evaluated.
  bool done() const;
  // The next slice. After an error the evaluation is of no more use.
  absl::Status EvaluateSlice();
  // When it is done: counts what this draw hasn't counted yet, and answers.
  std::shared_ptr<const v1::EvaluateResponse> Finish();

 private:
  class State;
  explicit EvaluateCall(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// All of it, for a request whose fields hold their bytes themselves.
absl::StatusOr<v1::EvaluateResponse> Evaluate(Run& run, const Backend& backend,
                                              const v1::EvaluateRequest& request);

v1::Totals ToTotals(const Sums& sums);

}  // namespace sis
