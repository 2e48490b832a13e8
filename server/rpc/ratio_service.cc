#include "server/rpc/ratio_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/messages/cache_messages.h"
#include "server/rpc/append_stream.h"
#include "server/rpc/evaluate_stream.h"
#include "server/rpc/fetch_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/rpc_timer.h"
#include "server/rpc/segment_lease.h"
#include "server/slices/slices.h"

namespace sis {
namespace {

// Answers a unary call. The handler returns an absl::Status.
template <typename Handler>
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Metrics& metrics,
                                 StoreThreads& store_threads, const char* method, Handler handler) {
  const RpcTimer timer(metrics, method);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  store_threads.Run([=] {
    const absl::Status status = handler();
    timer.Finish(status.code());
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

absl::Status ReleaseAll(Run& run, const v1::ReleaseRequest& request,
                        v1::ReleaseResponse& response) {
  std::vector<SequenceName> names;
  names.reserve(request.sequences_size());
  for (const v1::SequenceRef& ref : request.sequences()) {
    absl::StatusOr<SequenceName> name = ParseSequence(ref);
    if (!name.ok()) return name.status();
    names.push_back(*std::move(name));
  }
  uint64_t sequences = 0;
  uint64_t leases = 0;
  for (const SequenceName& name : names) {
    sequences +=
        run.Release(name) || (run.backing() != nullptr && run.backing()->Release(run, name));
  }
  for (const uint64_t lease_id : request.lease_ids()) leases += run.EndLease(lease_id);
  response.set_released_sequences(sequences);
  response.set_released_leases(leases);
  response.set_unknown(names.size() + request.lease_ids_size() - sequences - leases);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* RatioService::CreateRun(grpc::CallbackServerContext* context,
                                                  const v1::CreateRunRequest* request,
                                                  v1::CreateRunResponse* response) {
  return Answer(context, metrics_, store_threads_, "CreateRun", [=, this]() -> absl::Status {
    const absl::StatusOr<RunRegistry::Created> created = runs_.Create(*request);
    if (!created.ok()) return created.status();
    response->set_incarnation(created->run->incarnation());
    response->set_created(created->created);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RatioService::AdvanceVersion(grpc::CallbackServerContext* context,
                                                       const v1::AdvanceVersionRequest* request,
                                                       v1::AdvanceVersionResponse* response) {
  return Answer(context, metrics_, store_threads_, "AdvanceVersion", [=, this]() -> absl::Status {
    const absl::StatusOr<std::shared_ptr<Run>> run = runs_.Find(request->run());
    if (!run.ok()) return run.status();
    const absl::StatusOr<int64_t> dropped = (*run)->AdvanceVersion(request->policy_version());
    if (!dropped.ok()) return dropped.status();
    response->set_dropped_sequences(*dropped);
    // Not worth failing for: stale records are then taken for fresh after a restart, or elsewhere.
    runs_.Exchange(**run).IgnoreError();
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RatioService::GetRun(grpc::CallbackServerContext* context,
                                               const v1::GetRunRequest* request,
                                               v1::GetRunResponse* response) {
  return Answer(context, metrics_, store_threads_, "GetRun", [=, this]() -> absl::Status {
    v1::RunRef ref;
    ref.set_run_id(request->run_id());
    const absl::StatusOr<std::shared_ptr<Run>> run = runs_.Find(ref);
    if (!run.ok()) return run.status();
    *response->mutable_run() = ToMessage((*run)->Describe());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RatioService::ListRuns(grpc::CallbackServerContext* context,
                                                 const v1::ListRunsRequest*,
                                                 v1::ListRunsResponse* response) {
  return Answer(context, metrics_, store_threads_, "ListRuns", [=, this]() -> absl::Status {
    for (const std::shared_ptr<Run>& run : runs_.registry().List()) {
      *response->add_runs() = ToMessage(run->Describe());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RatioService::GetStep(grpc::CallbackServerContext* context,
                                                const v1::GetStepRequest* request,
                                                v1::GetStepResponse* response) {
  return Answer(context, metrics_, store_threads_, "GetStep", [=, this]() -> absl::Status {
    const absl::StatusOr<std::shared_ptr<Run>> run = runs_.Find(request->run());
    if (!run.ok()) return run.status();
    const std::optional<StepLedger::Step> step = (*run)->steps().Find(request->draw());
    if (!step.has_value()) {
      return absl::NotFoundError(absl::StrCat("draw ", request->draw(), " of run '", (*run)->id(),
                                              "': nothing counted, or too old"));
    }
    *response->mutable_totals() = ToTotals(step->sums);
    response->set_sequences(step->sequences);
    return absl::OkStatus();
  });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RatioService::Append(
    grpc::CallbackServerContext*) {
  return new AppendStream(runs_, room_queue_, evaluators_.segments, metrics_, store_threads_);
}

grpc::ServerUnaryReactor* RatioService::Release(grpc::CallbackServerContext* context,
                                                const v1::ReleaseRequest* request,
                                                v1::ReleaseResponse* response) {
  return Answer(context, metrics_, store_threads_, "Release", [=, this]() -> absl::Status {
    const absl::StatusOr<std::shared_ptr<Run>> run = runs_.Find(request->run());
    if (!run.ok()) return run.status();
    return ReleaseAll(**run, *request, *response);
  });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RatioService::FetchTopK(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return new FetchStream(*context, evaluators_, metrics_, store_threads_, *request);
}

grpc::ServerUnaryReactor* RatioService::Evaluate(grpc::CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const RpcTimer timer(metrics_, "Evaluate");
  EvaluateTask::Start(
      evaluators_, *request, [context] { return context->IsCancelled(); },
      [=](absl::StatusOr<grpc::ByteBuffer> answer) {
        timer.Finish(answer.status().code());
        if (answer.ok()) response->Swap(&*answer);
        reactor->Finish(ToGrpcStatus(answer.status()));
      });
  return reactor;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* RatioService::EvaluateStream(
    grpc::CallbackServerContext*) {
  return sis::EvaluateStream::Start(evaluators_, metrics_);
}

grpc::ServerWriteReactor<v1::LeaseSegmentResponse>* RatioService::LeaseSegment(
    grpc::CallbackServerContext* context, const v1::LeaseSegmentRequest* request) {
  return SegmentLease::Start(evaluators_.segments, evaluators_.workers, metrics_, context->peer(),
                             request->bytes());
}

}  // namespace sis
