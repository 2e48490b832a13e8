#include "server/rpc/ratio_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/messages/cache_messages.h"
#include "server/messages/slices.h"
#include "server/messages/step_message.h"
#include "server/observe/inspection_messages.h"
#include "server/observe/listed_runs.h"
#include "server/rpc/append_stream.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/evaluate_task.h"
#include "server/rpc/fetch_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/reaction_order.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {
namespace {

using Context = grpc::CallbackServerContext;
// Ends a unary call.
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

// Maximum number of entries in one list.
constexpr uint32_t kMaxListed = 1000;

absl::Status CheckLimit(uint32_t limit) {
  if (limit <= kMaxListed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("limit: ", limit, " is above ", kMaxListed));
}

// Counts as a call until its response has been sent. Deletes itself.
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
  const absl::StatusOr<int64_t> dropped =
      resources.runs.AdvanceVersion(run, request.policy_version(), request.label());
  if (!dropped.ok()) return dropped.status();
  response.set_dropped_sequences(*dropped);
  return absl::OkStatus();
}

absl::Status GetRun(const Resources&, Run& run, const v1::GetRunRequest&,
                    v1::GetRunResponse& response) {
  *response.mutable_run() = Describe(run);
  for (const auto& [version, text] : run.version_labels()) {
    v1::VersionLabel& label = *response.mutable_run()->add_version_labels();
    label.set_label(text);
    label.set_policy_version(version);
  }
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
  // One more than the limit shows whether there are more.
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
  // One more than the limit shows whether there are more.
  std::vector<SequenceDescription> listed = run.ListSequences(after, limit + 1);
  response.set_more(listed.size() > limit);
  listed.resize(std::min(listed.size(), limit));
  for (const SequenceDescription& sequence : listed) {
    *response.add_sequences() = ToMessage(sequence);
  }
  response.set_store_keeps_evicted(run.backing() != nullptr);
  return absl::OkStatus();
}

// Returns a handler that finds the run of a request first.
template <typename Request, typename Response>
auto OfRun(absl::Status (*handler)(const Resources& resources, Run& run, const Request& request,
                                   Response& response)) {
  return [handler](const Resources& resources, const Caller& caller, const Request& request,
                   Response& response) -> absl::Status {
    const auto run = resources.runs.Find(RunOf(request), caller);
    return run.ok() ? handler(resources, **run, request, response) : run.status();
  };
}

class RatioService final : public v1::RatioService::CallbackService {
 public:
  explicit RatioService(const Resources& resources) : resources_(resources) {}

 private:
  using Unary = grpc::ServerUnaryReactor;

  Unary* CreateRun(Context* context, const v1::CreateRunRequest* request,
                   v1::CreateRunResponse* response) override {
    return Answer("CreateRun", *context, *request, *response, sis::CreateRun);
  }
  Unary* ListRuns(Context* context, const v1::ListRunsRequest* request,
                  v1::ListRunsResponse* response) override {
    const auto list = [](const Resources& resources, const Caller& caller, const auto&,
                         auto& answer) {
      sis::ListRuns(resources.runs.registry(), caller, answer);
      return absl::OkStatus();
    };
    return Answer("ListRuns", *context, *request, *response, list);
  }
  Unary* DeleteRun(Context* context, const v1::DeleteRunRequest* request,
                   v1::DeleteRunResponse* response) override {
    return Answer("DeleteRun", *context, *request, *response, sis::DeleteRun);
  }
  Unary* GetServer(Context* context, const v1::GetServerRequest* request,
                   v1::GetServerResponse* response) override {
    return Answer("GetServer", *context, *request, *response, sis::GetServer);
  }
  Unary* AdvanceVersion(Context* context, const v1::AdvanceVersionRequest* request,
                        v1::AdvanceVersionResponse* response) override {
    return Answer("AdvanceVersion", *context, *request, *response, OfRun(sis::AdvanceVersion));
  }
  Unary* GetRun(Context* context, const v1::GetRunRequest* request,
                v1::GetRunResponse* response) override {
    return Answer("GetRun", *context, *request, *response, OfRun(sis::GetRun));
  }
  Unary* GetStep(Context* context, const v1::GetStepRequest* request,
                 v1::GetStepResponse* response) override {
    return Answer("GetStep", *context, *request, *response, OfRun(sis::GetStep));
  }
  Unary* ListSteps(Context* context, const v1::ListStepsRequest* request,
                   v1::ListStepsResponse* response) override {
    return Answer("ListSteps", *context, *request, *response, OfRun(sis::ListSteps));
  }
  Unary* ListSequences(Context* context, const v1::ListSequencesRequest* request,
                       v1::ListSequencesResponse* response) override {
    return Answer("ListSequences", *context, *request, *response, OfRun(sis::ListSequences));
  }
  Unary* Release(Context* context, const v1::ReleaseRequest* request,
                 v1::ReleaseResponse* response) override {
    return Answer("Release", *context, *request, *response, OfRun(sis::Release));
  }
  Unary* InspectRun(Context* context, const v1::InspectRunRequest* request,
                    v1::InspectRunResponse* response) override {
    const auto inspect = OfRun<v1::InspectRunRequest, v1::InspectRunResponse>(
        [](const Resources&, Run& run, const auto&, auto& answer) {
          sis::InspectRun(run, answer);
          return absl::OkStatus();
        });
    return Answer("InspectRun", *context, *request, *response, inspect);
  }
  Unary* InspectSequence(Context* context, const v1::InspectSequenceRequest* request,
                         v1::InspectSequenceResponse* response) override {
    const auto inspect = OfRun<v1::InspectSequenceRequest, v1::InspectSequenceResponse>(
        [](const Resources&, Run& run, const auto& inspected, auto& answer) {
          return sis::InspectSequence(run, inspected, answer);
        });
    return Answer("InspectSequence", *context, *request, *response, inspect);
  }

  Unary* Evaluate(Context* context, const v1::EvaluateRequest* request,
                  v1::EvaluateResponse* response) override {
    return Begin("Evaluate", *context, [&](const Caller& caller, const Finish& finish) {
      const CallDeadline deadline(*context, resources_.default_deadline);
      const auto may_go_on = [context, deadline] {
        return context->IsCancelled() ? absl::CancelledError("the trainer is gone")
                                      : deadline.Check();
      };
      EvaluateTask::Start(resources_, caller, *request, *response, may_go_on, finish);
    });
  }
  grpc::ServerBidiReactor<v1::AppendRequest, v1::AppendResponse>* Append(
      Context* context) override {
    return new AppendStream(*context, resources_);
  }
  grpc::ServerWriteReactor<v1::FetchTopKResponse>* FetchTopK(
      Context* context, const v1::FetchTopKRequest* request) override {
    return new FetchStream(*context, resources_, *request);
  }

  // Begins a unary call. Calls start(caller, finish) if the caller may call the method.
  template <typename Start>
  Unary* Begin(const char* method, Context& context, const Start& start) {
    const RpcTimer timer(resources_.metrics, method);
    auto* reactor = new UnaryCall(resources_.streams);
    const Finish finish = [timer, reactor, &context](const absl::Status& status) {
      timer.Finish(status.code());
      reactor->Finish(ToGrpcStatus(status, context));
    };
    const absl::StatusOr<Caller> caller = resources_.authorize(context, method);
    if (caller.ok()) {
      start(*caller, finish);
    } else {
      finish(caller.status());
    }
    return reactor;
  }
  // Answers a unary call by handler(resources, caller, request, response).
  template <typename Request, typename Response, typename Handler>
  Unary* Answer(const char* method, Context& context, const Request& request, Response& response,
                const Handler& handler) {
    return Begin(method, context, [&](const Caller& caller, const Finish& finish) {
      const CallDeadline deadline(context, resources_.default_deadline);
      resources_.store_threads.Schedule("", [=, this, &request, &response] {
        const absl::Status late = deadline.Check();
        finish(late.ok() ? handler(resources_, caller, request, response) : late);
      });
    });
  }

  const Resources resources_;
};

}  // namespace

std::unique_ptr<v1::RatioService::Service> MakeRatioService(const Resources& resources) {
  return std::make_unique<RatioService>(resources);
}

}  // namespace sis
