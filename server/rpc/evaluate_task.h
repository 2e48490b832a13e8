// Runs one Evaluate on the worker pool.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/evaluate/evaluate.h"
#include "server/rpc/resources.h"

namespace sis {

// Evaluates work units of about 4 MiB, with the help of idle workers. Other runs get their turn
// between two units. Deletes itself.
class EvaluateTask final : public std::enable_shared_from_this<EvaluateTask> {
 public:
  // Called between groups of slices, by several workers concurrently. Returns OK, or the error that
  // ends the call.
  using MayGoOn = std::function<absl::Status()>;
  // Called once, by a worker, with the result.
  using Done = std::function<void(const absl::Status&)>;

  // Evaluates `request` into `response`. Both must live until `done` is called.
  static void Start(const Resources& resources, const Caller& caller,
                    const v1::EvaluateRequest& request, v1::EvaluateResponse& response,
                    MayGoOn may_go_on, Done done);

 private:
  EvaluateTask(const Resources& resources, const Caller& caller, const v1::EvaluateRequest& request,
               v1::EvaluateResponse& response, MayGoOn may_go_on, Done done);
  void Schedule();
  void EvaluatePiece();
  // Releases its references to sequences before it answers, so that the client can then release the
  // sequences or advance the version.
  void Answer(const absl::Status& status);
  // Evaluates one work unit. Returns true if it was the last.
  absl::StatusOr<bool> TryEvaluatePiece();
  // Evaluates the groups [first, end) of the call. Returns the error of the first group with one.
  absl::Status EvaluateGroups(size_t first, size_t end, size_t lanes);

  const Resources resources_;
  const Caller caller_;
  const v1::EvaluateRequest& request_;
  v1::EvaluateResponse& response_;
  const MayGoOn may_go_on_;
  const Done done_;
  std::shared_ptr<Run> run_;            // set once it is found
  std::unique_ptr<EvaluateCall> call_;  // set from the first work unit on
  size_t next_group_ = 0;
};

}  // namespace sis
