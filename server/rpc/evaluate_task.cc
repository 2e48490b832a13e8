#include "server/rpc/evaluate_task.h"

#include <utility>

#include "server/wire/serialize.h"

namespace sis {
namespace {

// A millisecond or so.
constexpr uint64_t kPieceValues = 1 << 20;

}  // namespace

void EvaluateTask::Start(const Resources& resources, const Caller& caller, ClientAt client,
                         const grpc::ByteBuffer& request, MayGoOn may_go_on, Done done) {
  absl::StatusOr<std::unique_ptr<Request>> received =
      Request::Parse(request, resources.parsing, resources.segments, client);
  if (!received.ok()) return done(received.status());
  const std::shared_ptr<EvaluateTask> task(new EvaluateTask(resources, caller, *std::move(received),
                                                            std::move(may_go_on), std::move(done)));
  task->Schedule();
}

EvaluateTask::EvaluateTask(const Resources& resources, const Caller& caller,
                           std::unique_ptr<const Request> request, MayGoOn may_go_on, Done done)
    : resources_(resources),
      caller_(caller),
      request_(std::move(request)),
      may_go_on_(std::move(may_go_on)),
      done_(std::move(done)) {}

void EvaluateTask::Schedule() {
  resources_.workers.Schedule(request_->message().run().run_id(),
                              [self = shared_from_this()] { self->EvaluatePiece(); });
}

void EvaluateTask::EvaluatePiece() {
  const absl::StatusOr<bool> done = TryEvaluatePiece();
  if (!done.ok()) return Answer(done.status());
  if (!*done) return Schedule();
  absl::StatusOr<std::shared_ptr<const v1::EvaluateResponse>> response = call_->Finish();
  if (!response.ok()) return Answer(response.status());
  Answer(SerializeInPlace(*std::move(response)));
}

void EvaluateTask::Answer(absl::StatusOr<grpc::ByteBuffer> answer) {
  call_.reset();
  done_(std::move(answer));
}

absl::StatusOr<bool> EvaluateTask::TryEvaluatePiece() {
  const v1::EvaluateRequest& request = request_->message();
  if (call_ == nullptr) {
    absl::StatusOr<std::shared_ptr<Run>> run = resources_.runs.Find(request.run(), caller_);
    if (!run.ok()) return run.status();
    absl::StatusOr<std::unique_ptr<EvaluateCall>> call =
        EvaluateCall::Start(*std::move(run), resources_.backend, request, request_->arrays());
    if (!call.ok()) return call.status();
    call_ = *std::move(call);
  }
  for (uint64_t values = 0; values < kPieceValues && !call_->done();) {
    if (absl::Status status = may_go_on_(); !status.ok()) return status;
    const absl::StatusOr<uint64_t> values_read = call_->EvaluateSlice();
    if (!values_read.ok()) return values_read.status();
    values += *values_read;
  }
  return call_->done();
}

}  // namespace sis
