#include "server/rpc/ratio_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/evaluate/inspection_messages.h"
#include "server/evaluate/step_message.h"
#include "server/messages/cache_messages.h"
#include "server/rpc/append_stream.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/client_at.h"
#include "server/rpc/evaluate_stream.h"
#include "server/rpc/evaluate_task.h"
#include "server/rpc/fetch_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/rpc_timer.h"
#include "server/rpc/segment_lease.h"
#include "server/rpc/unary_call.h"
#include "server/slices/slices.h"
#include "server/wire/received_arrays.h"
#include "server/wire/received_bytes.h"
#include "server/wire/serialize.h"

namespace sis {
namespace {

absl::Status ReleaseAll(StoredRuns& runs, Run& run, const v1::ReleaseRequest& request,
                        v1::ReleaseResponse& response) {
  if (request.lease_ids_size() > run.limits().max_leases) {
    return absl::InvalidArgumentError(absl::StrCat("lease_ids: ", request.lease_ids_size(),
                                                   " of them, must be at most ",
                                                   run.limits().max_leases, " (--max_leases)"));
  }
  std::vector<SequenceName> names;
  names.reserve(request.sequences_size());
  for (const v1::SequenceRef& ref : request.sequences()) {
    absl::StatusOr<SequenceName> name = ParseSequence(ref);
    if (!name.ok()) return name.status();
    names.push_back(*std::move(name));
  }
  const std::span<const uint64_t> lease_ids(request.lease_ids().data(), request.lease_ids_size());
  const absl::StatusOr<StoredRuns::Released> released = runs.Release(run, names, lease_ids);
  if (!released.ok()) return released.status();
  response.set_released_sequences(released->sequences);
  response.set_released_leases(released->leases);
  response.set_unknown(names.size() + request.lease_ids_size() - released->sequences -
                       released->leases);
  return absl::OkStatus();
}

absl::Status ListPage(const Run& run, const v1::ListSequencesRequest& request,
                      v1::ListSequencesResponse& response) {
  constexpr uint32_t kMost = 1000;
  if (request.limit() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit: ", request.limit(), " is above ", kMost));
  }
  std::optional<SequenceName> after;
  if (request.has_after()) {
    absl::StatusOr<SequenceName> name = ParseSequence(request.after());
    if (!name.ok()) return name.status();
    after = *std::move(name);
  }
  const size_t limit = request.limit() == 0 ? kMost : request.limit();
  // One more says whether there are more.
  std::vector<SequenceDescription> listed = run.ListSequences(after, limit + 1);
  response.set_more(listed.size() > limit);
  listed.resize(std::min(listed.size(), limit));
  for (const SequenceDescription& sequence : listed) {
    *response.add_sequences() = ToMessage(sequence);
  }
  response.set_store_keeps_evicted(run.backing() != nullptr);
  return absl::OkStatus();
}

// Of a type without arrays.
template <typename Message>
absl::Status Parse(const grpc::ByteBuffer& received, ParsingCharge& charge, Message& message) {
  grpc::ByteBuffer buffer = received;
  const absl::StatusOr<ScatteredBytes> bytes = ReceivedBytes(buffer, charge);
  if (!bytes.ok()) return bytes.status();
  ReceivedArrays none;
  return ReceivedArrays::Parse(*bytes, ShapeOf<Message>(), charge, message, none);
}

template <typename Request>
const v1::RunRef& RunOf(const Request& request) {
  return request.run();
}
v1::RunRef RunOf(const v1::GetRunRequest& request) {
  v1::RunRef newest;
  newest.set_run_id(request.run_id());
  return newest;
}

}  // namespace

template <typename Request, typename Response, typename Handler>
RatioService::Unary* RatioService::Answer(const Call& call, Handler handler) {
  const RpcTimer timer(resources_.metrics, call.method);
  Unary* reactor = new UnaryCall(resources_.streams);
  const auto caller = resources_.authenticator.Authorize(*call.context, call.method);
  if (!caller.ok()) {
    timer.Finish(caller.status().code());
    reactor->Finish(ToGrpcStatus(caller.status()));
    return reactor;
  }
  const CallDeadline deadline(*call.context, resources_.default_deadline);
  resources_.store_threads.Run([=, this] {
    ParsingCharge charge(resources_.parsing);
    Request request;
    const auto response = std::make_shared<Response>();
    absl::Status status = deadline.Check();
    if (status.ok()) status = Parse(*call.request, charge, request);
    if (status.ok()) status = handler(*caller, &request, response.get());
    if (status.ok()) *call.response = SerializeInPlace(response);
    timer.Finish(status.code());
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

template <typename Request, typename Response, typename Handler>
RatioService::Unary* RatioService::AnswerOfRun(const Call& call, Handler handler) {
  return Answer<Request, Response>(
      call,
      [=, this](const Caller& caller, const Request* request, Response* response) -> absl::Status {
        const auto found = resources_.runs.Find(RunOf(*request), caller);
        return found.ok() ? handler(**found, request, response) : found.status();
      });
}

RatioService::Unary* RatioService::CreateRun(Context* context, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  using Request = v1::CreateRunRequest;
  using Response = v1::CreateRunResponse;
  const Call call{context, "CreateRun", request, response};
  return Answer<Request, Response>(call, [this](const Caller& caller, const Request* request,
                                                Response* response) {
    const absl::StatusOr<RunRegistry::Created> created = resources_.runs.Create(*request, caller);
    if (!created.ok()) return created.status();
    response->set_incarnation(created->run->incarnation());
    response->set_created(created->created);
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::AdvanceVersion(Context* context, const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  using Request = v1::AdvanceVersionRequest;
  using Response = v1::AdvanceVersionResponse;
  const Call call{context, "AdvanceVersion", request, response};
  return AnswerOfRun<Request, Response>(
      call, [this](Run& run, const Request* request, Response* response) {
        const absl::StatusOr<int64_t> dropped =
            resources_.runs.AdvanceVersion(run, request->policy_version());
        if (!dropped.ok()) return dropped.status();
        response->set_dropped_sequences(*dropped);
        return absl::OkStatus();
      });
}

RatioService::Unary* RatioService::GetRun(Context* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) {
  using Request = v1::GetRunRequest;
  using Response = v1::GetRunResponse;
  const Call call{context, "GetRun", request, response};
  return AnswerOfRun<Request, Response>(call, [](Run& run, const Request*, Response* response) {
    *response->mutable_run() = ToMessage(run.Describe());
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::ListRuns(Context* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  using Request = v1::ListRunsRequest;
  using Response = v1::ListRunsResponse;
  const Call call{context, "ListRuns", request, response};
  return Answer<Request, Response>(
      call, [this](const Caller& caller, const Request*, Response* response) {
        for (const std::shared_ptr<Run>& run : resources_.runs.registry().List(caller)) {
          *response->add_runs() = ToMessage(run->Describe());
        }
        return absl::OkStatus();
      });
}

RatioService::Unary* RatioService::DeleteRun(Context* context, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  using Request = v1::DeleteRunRequest;
  using Response = v1::DeleteRunResponse;
  const Call call{context, "DeleteRun", request, response};
  return Answer<Request, Response>(
      call, [this](const Caller& caller, const Request* request, Response* response) {
        const absl::StatusOr<bool> deleted = resources_.runs.Delete(request->run(), caller);
        if (deleted.ok()) response->set_deleted(*deleted);
        return deleted.status();
      });
}

RatioService::Unary* RatioService::GetStep(Context* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) {
  using Request = v1::GetStepRequest;
  using Response = v1::GetStepResponse;
  const Call call{context, "GetStep", request, response};
  return AnswerOfRun<Request, Response>(
      call, [](Run& run, const Request* request, Response* response) {
        const std::optional<StepLedger::Step> step = run.steps().Find(request->draw());
        if (!step.has_value()) {
          return absl::NotFoundError(absl::StrCat("draw ", request->draw(), " of run '", run.id(),
                                                  "': nothing counted, or too old"));
        }
        *response = ToMessage(*step);
        return absl::OkStatus();
      });
}

RatioService::Unary* RatioService::ListSteps(Context* context, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  using Request = v1::ListStepsRequest;
  using Response = v1::ListStepsResponse;
  const Call call{context, "ListSteps", request, response};
  return AnswerOfRun<Request, Response>(call, [](Run& run, const Request*, Response* response) {
    for (const auto& [draw, step] : run.steps().List()) {
      v1::ListStepsResponse::Step& message = *response->add_steps();
      message.set_draw(draw);
      *message.mutable_step() = ToMessage(step);
    }
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::ListSequences(Context* context, const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  using Request = v1::ListSequencesRequest;
  using Response = v1::ListSequencesResponse;
  const Call call{context, "ListSequences", request, response};
  return AnswerOfRun<Request, Response>(call,
                                        [](Run& run, const Request* request, Response* response) {
                                          return ListPage(run, *request, *response);
                                        });
}

RatioService::Unary* RatioService::GetServer(Context* context, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  using Request = v1::GetServerRequest;
  using Response = v1::GetServerResponse;
  const Call call{context, "GetServer", request, response};
  return Answer<Request, Response>(call, [this](const Caller&, const Request*, Response* response) {
    *response = resources_.status.Describe();
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::InspectRun(Context* context, const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  using Request = v1::InspectRunRequest;
  using Response = v1::InspectRunResponse;
  const Call call{context, "InspectRun", request, response};
  return AnswerOfRun<Request, Response>(call, [](Run& run, const Request*, Response* response) {
    sis::InspectRun(run, *response);
    return absl::OkStatus();
  });
}

RatioService::Unary* RatioService::InspectSequence(Context* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) {
  using Request = v1::InspectSequenceRequest;
  using Response = v1::InspectSequenceResponse;
  const Call call{context, "InspectSequence", request, response};
  return AnswerOfRun<Request, Response>(call,
                                        [](Run& run, const Request* request, Response* response) {
                                          return sis::InspectSequence(run, *request, *response);
                                        });
}

RatioService::Stream* RatioService::Append(Context* context) {
  return new AppendStream(*context, resources_);
}

RatioService::Unary* RatioService::Release(Context* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) {
  using Request = v1::ReleaseRequest;
  using Response = v1::ReleaseResponse;
  const Call call{context, "Release", request, response};
  return AnswerOfRun<Request, Response>(
      call, [this](Run& run, const Request* request, Response* response) {
        return ReleaseAll(resources_.runs, run, *request, *response);
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RatioService::FetchTopK(
    Context* context, const grpc::ByteBuffer* request) {
  return new FetchStream(*context, resources_, *request);
}

RatioService::Unary* RatioService::Evaluate(Context* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  Unary* reactor = new UnaryCall(resources_.streams);
  const RpcTimer timer(resources_.metrics, "Evaluate");
  const auto caller = resources_.authenticator.Authorize(*context, "Evaluate");
  if (!caller.ok()) {
    timer.Finish(caller.status().code());
    reactor->Finish(ToGrpcStatus(caller.status()));
    return reactor;
  }
  EvaluateTask::Start(
      resources_, *caller, WhereIs(*context), *request,
      [context, deadline = CallDeadline(*context, resources_.default_deadline)] {
        return context->IsCancelled() ? absl::CancelledError("the trainer is gone")
                                      : deadline.Check();
      },
      [=](absl::StatusOr<grpc::ByteBuffer> answer) {
        timer.Finish(answer.status().code());
        if (answer.ok()) response->Swap(&*answer);
        reactor->Finish(ToGrpcStatus(answer.status()));
      });
  return reactor;
}

RatioService::Stream* RatioService::EvaluateStream(Context* context) {
  return sis::EvaluateStream::Start(*context, resources_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RatioService::LeaseSegment(
    Context* context, const grpc::ByteBuffer* request) {
  ParsingCharge charge(resources_.parsing);
  v1::LeaseSegmentRequest message;
  absl::Status status = resources_.authenticator.Authorize(*context, "LeaseSegment").status();
  if (status.ok()) status = Parse(*request, charge, message);
  return SegmentLease::Start(resources_, WhereIs(*context),
                             status.ok() ? absl::StatusOr<uint64_t>(message.bytes()) : status);
}

}  // namespace sis
