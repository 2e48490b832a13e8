#include "server/rpc/evaluate_task.h"

#include <utility>

#include "server/wire/serialize.h"

namespace sis {
namespace {

// A millisecond or so.
constexpr uint64_t kPieceValues = 1 << 20;

}  // namespace

void EvaluateTask::Start(const Evaluators& evaluators, const grpc::ByteBuffer& request,
                         IsCancelled is_cancelled, Done done) {
  absl::StatusOr<std::unique_ptr<Request>> parsed = Request::Parse(request);
  if (!parsed.ok()) return done(parsed.status());
  if (const std::string& name = (*parsed)->message().segment(); !name.empty()) {
    // Held from here on: the request goes on though the lease may end.
    absl::StatusOr<std::shared_ptr<SharedSegment>> segment = evaluators.segments.Find(name);
    if (!segment.ok()) return done(segment.status());
    (*parsed)->arrays().LieIn(*std::move(segment));
  }
  const std::shared_ptr<EvaluateTask> task(
      new EvaluateTask(evaluators, *std::move(parsed), std::move(is_cancelled), std::move(done)));
  task->Schedule();
}

EvaluateTask::EvaluateTask(const Evaluators& evaluators, std::unique_ptr<const Request> request,
                           IsCancelled is_cancelled, Done done)
    : evaluators_(evaluators),
      request_(std::move(request)),
      is_cancelled_(std::move(is_cancelled)),
      done_(std::move(done)) {}

void EvaluateTask::Schedule() {
  evaluators_.workers.Schedule(request_->message().run().run_id(),
                               [self = shared_from_this()] { self->EvaluatePiece(); });
}

void EvaluateTask::EvaluatePiece() {
  const absl::StatusOr<bool> done = TryEvaluatePiece();
  if (!done.ok()) return Answer(done.status());
  if (!*done) return Schedule();
  Answer(SerializeInPlace(evaluation_->Finish()));
}

void EvaluateTask::Answer(absl::StatusOr<grpc::ByteBuffer> answer) {
  evaluation_.reset();
  done_(std::move(answer));
}

absl::StatusOr<bool> EvaluateTask::TryEvaluatePiece() {
  const v1::EvaluateRequest& request = request_->message();
  if (run_ == nullptr) {
    absl::StatusOr<std::shared_ptr<Run>> run = evaluators_.runs.Find(request.run());
    if (!run.ok()) return run.status();
    run_ = *std::move(run);
  }
  for (uint64_t values = 0; values < kPieceValues;) {
    if (is_cancelled_()) return absl::CancelledError("the trainer is gone");
    if (!evaluation_.has_value()) {
      absl::StatusOr<EvaluateCall> evaluation =
          EvaluateCall::Start(*run_, evaluators_.backend, request, request_->arrays());
      if (!evaluation.ok()) return evaluation.status();
      evaluation_.emplace(*std::move(evaluation));
    }
    if (evaluation_->done()) return true;
    if (absl::Status status = evaluation_->EvaluateSlice(); !status.ok()) return status;
    values +=
        uint64_t{request.slices(slices_evaluated_++).length()} * evaluation_->values_per_position();
  }
  return evaluation_->done();
}

}  // namespace sis
