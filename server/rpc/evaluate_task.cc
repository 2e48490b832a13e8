#include "server/rpc/evaluate_task.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "server/threads/side_by_side.h"

namespace sis {
namespace {

// Values per work unit: about a millisecond of one worker.
constexpr uint64_t kPieceValues = 1 << 20;
// Minimum values per helping worker. Fewer don't justify waking it up.
constexpr uint64_t kLaneValues = 1 << 16;

}  // namespace

void EvaluateTask::Start(const Resources& resources, const Caller& caller,
                         const v1::EvaluateRequest& request, v1::EvaluateResponse& response,
                         MayGoOn may_go_on, Done done) {
  const std::shared_ptr<EvaluateTask> task(new EvaluateTask(resources, caller, request, response,
                                                            std::move(may_go_on), std::move(done)));
  task->Schedule();
}

EvaluateTask::EvaluateTask(const Resources& resources, const Caller& caller,
                           const v1::EvaluateRequest& request, v1::EvaluateResponse& response,
                           MayGoOn may_go_on, Done done)
    : resources_(resources),
      caller_(caller),
      request_(request),
      response_(response),
      may_go_on_(std::move(may_go_on)),
      done_(std::move(done)) {}

void EvaluateTask::Schedule() {
  resources_.workers.Schedule(request_.run().run_id(),
                              [self = shared_from_this()] { self->EvaluatePiece(); });
}

void EvaluateTask::EvaluatePiece() {
  const absl::StatusOr<bool> done = TryEvaluatePiece();
  if (!done.ok()) return Answer(done.status());
  if (!*done) return Schedule();
  Answer(call_->Finish());
}

void EvaluateTask::Answer(const absl::Status& status) {
  if (run_ != nullptr) run_->recent_events().NoteEvaluation(status.code());
  call_.reset();
  done_(status);
}

absl::StatusOr<bool> EvaluateTask::TryEvaluatePiece() {
  if (call_ == nullptr) {
    absl::StatusOr<std::shared_ptr<Run>> run = resources_.runs.Find(request_.run(), caller_);
    if (!run.ok()) return run.status();
    run_ = *run;
    absl::StatusOr<std::unique_ptr<EvaluateCall>> call = EvaluateCall::Start(
        *std::move(run), resources_.backend, request_, response_, resources_.workers.threads());
    if (!call.ok()) return call.status();
    call_ = *std::move(call);
  }
  const size_t first = next_group_;
  uint64_t values = 0;
  while (next_group_ < call_->groups() && values < kPieceValues) {
    values += call_->values(next_group_++);
  }
  const bool last = next_group_ == call_->groups();
  // Clients split work larger than a unit into several requests, which keep all workers busy.
  const bool alone = first == 0 && last;
  const size_t lanes =
      alone ? std::clamp<size_t>(values / kLaneValues, 1, resources_.workers.threads()) : 1;
  if (absl::Status status = EvaluateGroups(first, next_group_, lanes); !status.ok()) return status;
  return last;
}

absl::Status EvaluateTask::EvaluateGroups(size_t first, size_t end, size_t lanes) {
  struct Stop {
    size_t group;
    absl::Status status;
  };
  std::vector<Stop> stops(lanes, {end, absl::OkStatus()});
  std::atomic<size_t> next = first;
  SideBySide(resources_.workers, request_.run().run_id(), lanes, [&](size_t lane) {
    Stop& stop = stops[lane];
    while (stop.status.ok()) {
      stop.group = next++;
      if (stop.group >= end) return;
      stop.status = may_go_on_();
      if (stop.status.ok()) stop.status = call_->EvaluateGroup(stop.group, lane);
    }
    next = end;
  });
  // Groups begin in order, so none before this one was skipped.
  return std::ranges::min_element(stops, {}, &Stop::group)->status;
}

}  // namespace sis
