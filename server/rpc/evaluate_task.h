// One Evaluate on its way through the worker pool.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/evaluate/evaluate.h"
#include "server/rpc/resources.h"

namespace sis {

// Evaluates a piece of about 4 MiB, in which idle workers help, then lets other runs have their
// turn. Owns itself.
class EvaluateTask final : public std::enable_shared_from_this<EvaluateTask> {
 public:
  // Asked between groups of slices, by several workers at once: OK, or why there is to be no
  // answer.
  using MayGoOn = std::function<absl::Status()>;
  // Called once, by a worker.
  using Done = std::function<void(const absl::Status&)>;

  // Fills in `response` unless the status is an error. Request and response must live until `done`
  // is called.
  static void Start(const Resources& resources, const Caller& caller,
                    const v1::EvaluateRequest& request, v1::EvaluateResponse& response,
                    MayGoOn may_go_on, Done done);

 private:
  EvaluateTask(const Resources& resources, const Caller& caller, const v1::EvaluateRequest& request,
               v1::EvaluateResponse& response, MayGoOn may_go_on, Done done);
  void Schedule();
  void EvaluatePiece();
  // Lets go of the sequences first, so that whoever has the answer can release them, or advance the
  // version. Then sees to it that what is to be inspected is looked at.
  void Answer(const absl::Status& status);
  // As far as it gets with one piece. Whether that was the last.
  absl::StatusOr<bool> TryEvaluatePiece();
  // The groups [first, end) of the call. The error of the first that has one.
  absl::Status EvaluateGroups(size_t first, size_t end, size_t lanes);

  const Resources resources_;
  const Caller caller_;
  const v1::EvaluateRequest& request_;
  v1::EvaluateResponse& response_;
  const MayGoOn may_go_on_;
  const Done done_;
  std::shared_ptr<Run> run_;            // once it is found
  std::unique_ptr<EvaluateCall> call_;  // from the first piece on
  size_t next_group_ = 0;
};

}  // namespace sis
