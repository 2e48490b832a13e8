#include "server/rpc/ratio_service.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/evaluate/inspection_messages.h"
#include "server/evaluate/step_message.h"
#include "server/messages/cache_messages.h"
#include "server/messages/slices.h"
#include "server/rpc/append_stream.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/evaluate_task.h"
#include "server/rpc/fetch_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/listed_runs.h"
#include "server/rpc/reaction_order.h"
#include "server/wire/received_message.h"
#include "server/wire/serialize.h"

namespace sis {
namespace {

using Context = grpc::CallbackServerContext;
using Bytes = grpc::ByteBuffer;
// Answers a unary call.
using Finish = std::function<void(const absl::Status& status)>;

template <typename Request>
const v1::RunRef& RunOf(const Request& request) {
  return request.run();
}
v1::RunRef RunOf(const v1::GetRunRequest& request) {
  v1::RunRef newest;
  newest.set_run_id(request.run_id());
  return newest;
}

// The most entries of one list.
constexpr uint32_t kMaxListed = 1000;

absl::Status CheckLimit(uint32_t limit) {
  if (limit <= kMaxListed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("limit: ", limit, " is above ", kMaxListed));
}

// Counts as a call until its answer has been sent. Owns itself.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  explicit UnaryCall(OpenStreams& streams) : call_(streams) { order_.HandOn(); }
  void OnDone() override {
    order_.Begin();
    delete this;
  }

 private:
  const OpenStreams::Call call_;
  ReactionOrder order_;
};

using google::protobuf::MethodDescriptor;

// Every unary method has a message of its own.
template <typename Request>
const MethodDescriptor& MethodOf() {
  int index = 0;
  while (Methods().method(index)->input_type() != Request::descriptor()) ++index;
  return *Methods().method(index);
}

absl::Status CreateRun(const Resources& resources, const Caller& caller,
                       const v1::CreateRunRequest& request, v1::CreateRunResponse& response) {
  const absl::StatusOr<RunRegistry::Created> created = resources.runs.Create(request, caller);
  if (!created.ok()) return created.status();
  response.set_incarnation(created->run->incarnation());
  response.set_created(created->created);
  return absl::OkStatus();
}

absl::Status DeleteRun(const Resources& resources, const Caller& caller,
                       const v1::DeleteRunRequest& request, v1::DeleteRunResponse& response) {
  const absl::StatusOr<bool> deleted = resources.runs.Delete(request.run(), caller);
  if (deleted.ok()) response.set_deleted(*deleted);
  return deleted.status();
}

absl::Status GetServer(const Resources& resources, const Caller&, const v1::GetServerRequest&,
                       v1::GetServerResponse& response) {
  response = resources.status.Describe();
  return absl::OkStatus();
}

absl::Status AdvanceVersion(const Resources& resources, Run& run,
                            const v1::AdvanceVersionRequest& request,
                            v1::AdvanceVersionResponse& response) {
  run.inspection().LookAtAll();  // while the records are there
  const absl::StatusOr<int64_t> dropped =
      resources.runs.AdvanceVersion(run, request.policy_version());
  if (!dropped.ok()) return dropped.status();
  response.set_dropped_sequences(*dropped);
  return absl::OkStatus();
}

absl::Status GetRun(const Resources&, Run& run, const v1::GetRunRequest&,
                    v1::GetRunResponse& response) {
  *response.mutable_run() = Describe(run);
  return absl::OkStatus();
}

absl::Status GetStep(const Resources&, Run& run, const v1::GetStepRequest& request,
                     v1::GetStepResponse& response) {
  const std::optional<StepLedger::Step> step = run.steps().Find(request.draw());
  if (!step.has_value()) {
    return absl::NotFoundError(absl::StrCat("draw ", request.draw(), " of run '", run.id(),
                                            "': nothing counted, or too old"));
  }
  response = ToMessage(*step);
  return absl::OkStatus();
}

absl::Status ListSteps(const Resources&, Run& run, const v1::ListStepsRequest& request,
                       v1::ListStepsResponse& response) {
  if (absl::Status status = CheckLimit(request.limit()); !status.ok()) return status;
  const std::optional<uint64_t> after =
      request.has_after() ? std::optional(request.after()) : std::nullopt;
  const size_t limit = request.limit() == 0 ? kMaxListed : request.limit();
  // One more says whether there are more.
  std::vector<StepLedger::Step> listed = run.steps().List(after, limit + 1);
  response.set_more(listed.size() > limit);
  listed.resize(std::min(listed.size(), limit));
  for (const StepLedger::Step& step : listed) {
    v1::ListStepsResponse::Step& message = *response.add_steps();
    message.set_draw(step.draw);
    *message.mutable_step() = ToMessage(step);
    message.mutable_step()->clear_distributions();
  }
  return absl::OkStatus();
}

absl::Status Release(const Resources& resources, Run& run, const v1::ReleaseRequest& request,
                     v1::ReleaseResponse& response) {
  std::vector<SequenceName> names;
  names.reserve(request.sequences_size());
  for (const v1::SequenceRef& ref : request.sequences()) {
    absl::StatusOr<SequenceName> name = ParseSequence(ref);
    if (!name.ok()) return name.status();
    names.push_back(*std::move(name));
  }
  run.inspection().LookAtAll();  // while the records are there
  const absl::StatusOr<int64_t> released = resources.runs.Release(run, names);
  if (!released.ok()) return released.status();
  response.set_released_sequences(*released);
  response.set_unknown(names.size() - *released);
  return absl::OkStatus();
}

absl::Status ListSequences(const Resources&, Run& run, const v1::ListSequencesRequest& request,
                           v1::ListSequencesResponse& response) {
  if (absl::Status status = CheckLimit(request.limit()); !status.ok()) return status;
  std::optional<SequenceName> after;
  if (request.has_after()) {
    absl::StatusOr<SequenceName> name = ParseSequence(request.after());
    if (!name.ok()) return name.status();
    after = *std::move(name);
  }
  const size_t limit = request.limit() == 0 ? kMaxListed : request.limit();
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

}  // namespace

RatioService::RatioService(const Resources& resources) : resources_(resources) {
  Answer(sis::CreateRun);
  Answer<v1::ListRunsRequest, v1::ListRunsResponse>(
      [](const Resources& resources, const Caller& caller, const auto& request, auto& response) {
        return sis::ListRuns(resources.runs.registry(), caller, request, response);
      });
  Answer(sis::DeleteRun);
  Answer(sis::GetServer);
  AnswerOfRun(sis::AdvanceVersion);
  AnswerOfRun(sis::GetRun);
  AnswerOfRun(sis::GetStep);
  AnswerOfRun(sis::ListSteps);
  AnswerOfRun(sis::ListSequences);
  AnswerOfRun(sis::Release);
  AnswerOfRun<v1::InspectRunRequest, v1::InspectRunResponse>(
      [](const Resources&, Run& run, const auto&, auto& response) {
        sis::InspectRun(run, response);
        return absl::OkStatus();
      });
  AnswerOfRun<v1::InspectSequenceRequest, v1::InspectSequenceResponse>(
      [](const Resources&, Run& run, const auto& request, auto& response) {
        return sis::InspectSequence(run, request, response);
      });
  AddEvaluate();
  AddStreams();
}

template <typename Request, typename Response>
void RatioService::Answer(absl::Status (*handler)(const Resources& resources, const Caller& caller,
                                                  const Request& request, Response& response)) {
  AnswerBy<Request, Response>(
      [this, handler](const Caller& caller, const Request& request, Response& response) {
        return handler(resources_, caller, request, response);
      });
}

template <typename Request, typename Response>
void RatioService::AnswerOfRun(absl::Status (*handler)(const Resources& resources, Run& run,
                                                       const Request& request,
                                                       Response& response)) {
  AnswerBy<Request, Response>([this, handler](const Caller& caller, const Request& request,
                                              Response& response) -> absl::Status {
    const auto run = resources_.runs.Find(RunOf(request), caller);
    return run.ok() ? handler(resources_, **run, request, response) : run.status();
  });
}

template <typename Request, typename Response, typename Handler>
void RatioService::AnswerBy(Handler handler) {
  AddUnary(MethodOf<Request>(),
           [this, handler](Context& context, const Caller& caller, const Bytes& received,
                           Bytes& answered, const Finish& finish) {
             const CallDeadline deadline(context, resources_.default_deadline);
             resources_.store_threads.Run([=, this, &received, &answered] {
               if (absl::Status late = deadline.Check(); !late.ok()) return finish(late);
               const auto request = ReceivedMessage<Request>::Parse(received, resources_.parsing);
               if (!request.ok()) return finish(request.status());
               const auto response = std::make_shared<Response>();
               absl::Status status = handler(caller, (*request)->message(), *response);
               if (status.ok()) answered = SerializeInPlace(response);
               finish(status);
             });
           });
}

void RatioService::AddEvaluate() {
  AddUnary(MethodNamed("Evaluate"),
           [this](Context& context, const Caller& caller, const Bytes& received, Bytes& answered,
                  const Finish& finish) {
             EvaluateTask::Start(
                 resources_, caller, received,
                 [&context, deadline = CallDeadline(context, resources_.default_deadline)] {
                   return context.IsCancelled() ? absl::CancelledError("the trainer is gone")
                                                : deadline.Check();
                 },
                 [&answered, finish](absl::StatusOr<Bytes> answer) {
                   if (answer.ok()) answered.Swap(&*answer);
                   finish(answer.status());
                 });
           });
}

template <typename Start>
void RatioService::AddUnary(const MethodDescriptor& method, const Start& start) {
  const auto answer = [this, start, &name = method.name()](Context* context, const Bytes* received,
                                                           Bytes* answered) {
    const RpcTimer timer(resources_.metrics, name);
    auto* reactor = new UnaryCall(resources_.streams);
    const Finish finish = [timer, reactor](const absl::Status& status) {
      timer.Finish(status.code());
      reactor->Finish(ToGrpcStatus(status));
    };
    const absl::StatusOr<Caller> caller = resources_.authorize(*context, name);
    if (caller.ok()) {
      start(*context, *caller, *received, *answered, finish);
    } else {
      finish(caller.status());
    }
    return reactor;
  };
  MarkMethodRawCallback(method.index(),
                        new grpc::internal::CallbackUnaryHandler<Bytes, Bytes>(answer));
}

void RatioService::AddStreams() {
  const auto append = [this](Context* context) { return new AppendStream(*context, resources_); };
  const auto fetch = [this](Context* context, const Bytes* request) {
    return new FetchStream(*context, resources_, *request);
  };
  using grpc::internal::CallbackBidiHandler;
  using grpc::internal::CallbackServerStreamingHandler;
  MarkMethodRawCallback(MethodNamed("Append").index(),
                        new CallbackBidiHandler<Bytes, Bytes>(append));
  MarkMethodRawCallback(MethodNamed("FetchTopK").index(),
                        new CallbackServerStreamingHandler<Bytes, Bytes>(fetch));
}

}  // namespace sis
