#include "server/rpc/ratio_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/messages/cache_messages.h"
#include "server/rpc/append_stream.h"
#include "server/rpc/evaluate_stream.h"
#include "server/rpc/evaluate_task.h"
#include "server/rpc/fetch_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/rpc_timer.h"
#include "server/rpc/segment_lease.h"
#include "server/slices/slices.h"

namespace sis {
namespace {

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

template <typename Handler>
RatioService::Unary* RatioService::Answer(Context* context, const char* method, Handler handler) {
  const RpcTimer timer(resources_.metrics, method);
  Unary* reactor = context->DefaultReactor();
  resources_.store_threads.Run([=] {
    const absl::Status status = handler();
    timer.Finish(status.code());
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

template <typename Handler>
RatioService::Unary* RatioService::AnswerOfRun(Context* context, const char* method,
                                               const v1::RunRef& run, Handler handler) {
  return Answer(context, method, [=, this]() -> absl::Status {
    const absl::StatusOr<std::shared_ptr<Run>> found = resources_.runs.Find(run);
    return found.ok() ? handler(**found) : found.status();
  });
}

RatioService::Unary* RatioService::CreateRun(Context* context, const v1::CreateRunRequest* request,
                                             v1::CreateRunResponse* response) {
  return Answer(context, "CreateRun", [=, this] {
    const absl::StatusOr<RunRegistry::Created> created = resources_.runs.Create(*request);
    if (!created.ok()) return created.status();
    response->set_incarnation(created->run->incarnation());
    response->set_created(created->created);
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::AdvanceVersion(Context* context,
                                                  const v1::AdvanceVersionRequest* request,
                                                  v1::AdvanceVersionResponse* response) {
  return AnswerOfRun(context, "AdvanceVersion", request->run(), [=, this](Run& run) {
    const absl::StatusOr<int64_t> dropped = run.AdvanceVersion(request->policy_version());
    if (!dropped.ok()) return dropped.status();
    response->set_dropped_sequences(*dropped);
    // Not worth failing for: stale records are then taken for fresh after a restart, or elsewhere.
    resources_.runs.Exchange(run).IgnoreError();
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::GetRun(Context* context, const v1::GetRunRequest* request,
                                          v1::GetRunResponse* response) {
  v1::RunRef newest;
  newest.set_run_id(request->run_id());
  return AnswerOfRun(context, "GetRun", newest, [=](Run& run) {
    *response->mutable_run() = ToMessage(run.Describe());
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::ListRuns(Context* context, const v1::ListRunsRequest*,
                                            v1::ListRunsResponse* response) {
  return Answer(context, "ListRuns", [=, this] {
    for (const std::shared_ptr<Run>& run : resources_.runs.registry().List()) {
      *response->add_runs() = ToMessage(run->Describe());
    }
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::DeleteRun(Context* context, const v1::DeleteRunRequest* request,
                                             v1::DeleteRunResponse* response) {
  return Answer(context, "DeleteRun", [=, this] {
    const absl::StatusOr<bool> deleted = resources_.runs.Delete(request->run());
    if (deleted.ok()) response->set_deleted(*deleted);
    return deleted.status();
  });
}

RatioService::Unary* RatioService::GetStep(Context* context, const v1::GetStepRequest* request,
                                           v1::GetStepResponse* response) {
  return AnswerOfRun(context, "GetStep", request->run(), [=](Run& run) {
    const std::optional<StepLedger::Step> step = run.steps().Find(request->draw());
    if (!step.has_value()) {
      return absl::NotFoundError(absl::StrCat("draw ", request->draw(), " of run '", run.id(),
                                              "': nothing counted, or too old"));
    }
    *response->mutable_totals() = ToTotals(step->sums);
    response->set_sequences(step->sequences);
    return absl::OkStatus();
  });
}

RatioService::Stream* RatioService::Append(Context*) { return new AppendStream(resources_); }

RatioService::Unary* RatioService::Release(Context* context, const v1::ReleaseRequest* request,
                                           v1::ReleaseResponse* response) {
  return AnswerOfRun(context, "Release", request->run(),
                     [=](Run& run) { return ReleaseAll(run, *request, *response); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RatioService::FetchTopK(
    Context* context, const grpc::ByteBuffer* request) {
  return new FetchStream(*context, resources_, *request);
}

RatioService::Unary* RatioService::Evaluate(Context* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  Unary* reactor = context->DefaultReactor();
  const RpcTimer timer(resources_.metrics, "Evaluate");
  EvaluateTask::Start(
      resources_, *request, [context] { return context->IsCancelled(); },
      [=](absl::StatusOr<grpc::ByteBuffer> answer) {
        timer.Finish(answer.status().code());
        if (answer.ok()) response->Swap(&*answer);
        reactor->Finish(ToGrpcStatus(answer.status()));
      });
  return reactor;
}

RatioService::Stream* RatioService::EvaluateStream(Context*) {
  return sis::EvaluateStream::Start(resources_);
}

grpc::ServerWriteReactor<v1::LeaseSegmentResponse>* RatioService::LeaseSegment(
    Context* context, const v1::LeaseSegmentRequest* request) {
  return SegmentLease::Start(resources_, context->peer(), request->bytes());
}

}  // namespace sis
