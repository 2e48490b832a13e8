#include "client/one_server/single_server.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "client/types/grpc_status.h"

namespace sis {
namespace {

// What a probe of a replica that is left alone may take.
constexpr absl::Duration kProbeTimeout = absl::Seconds(1);

}  // namespace

SingleServer::SingleServer(const std::shared_ptr<grpc::Channel>& channel,
                           absl::Duration call_timeout, std::unique_ptr<CircuitBreaker> breaker)
    : stub_(v1::RatioService::NewStub(channel)),
      fetch_stub_(channel),
      call_timeout_(call_timeout),
      breaker_(std::move(breaker)) {}

absl::Status SingleServer::Admit() {
  return breaker_ ? breaker_->Admit([this] { return Probe(); }) : absl::OkStatus();
}

void SingleServer::Failed(const absl::Status& status, absl::Duration waited) {
  if (breaker_) breaker_->Failed(status, waited);
}

absl::Status SingleServer::Probe() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + std::min(call_timeout_, kProbeTimeout)));
  v1::ListRunsResponse response;
  return ToAbslStatus(stub_->ListRuns(&context, v1::ListRunsRequest(), &response));
}

absl::Status SingleServer::Guarded(CircuitBreaker::Ask ask) {
  absl::Status status = breaker_ ? breaker_->Call(ask, [this] { return Probe(); }) : ask();
  if (IsUnreachable(status)) {
    const std::lock_guard lock(mutex_);
    for (auto& [run_id, known] : known_) known.confirmed = false;
  }
  return status;
}

void SingleServer::SetDeadline(grpc::ClientContext& context) const {
  context.set_deadline(absl::ToChronoTime(absl::Now() + call_timeout_));
}

absl::Status SingleServer::SendAbout(const std::string& run_id, CircuitBreaker::Ask send,
                                     absl::FunctionRef<bool()> amend) {
  std::optional<bool> confirmed;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(run_id); found != known_.end()) {
      confirmed = found->second.confirmed;
    }
  }
  if (confirmed == false) {
    if (absl::Status status = OpenAgain(run_id); !status.ok()) return status;
  }
  absl::Status status = send();
  if (!absl::IsNotFound(status) && !absl::IsFailedPrecondition(status)) return status;
  if (!amend() && !confirmed.has_value()) return status;
  if (confirmed.has_value()) {
    if (absl::Status opened = OpenAgain(run_id); !opened.ok()) return opened;
  }
  return send();
}

absl::Status SingleServer::OpenAgain(const std::string& run_id) {
  KnownRun known;
  {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(run_id);
    if (found == known_.end()) return absl::OkStatus();  // deleted meanwhile
    known = found->second;
  }
  absl::Status status = Send(&v1::RatioService::Stub::CreateRun, known.request).status();
  // That is up to others: the call itself will meet what there is.
  if (absl::IsPermissionDenied(status)) {
    Note(known.request, known.policy_version, /*confirmed=*/true);
    return absl::OkStatus();
  }
  if (status.ok() && known.policy_version > 0) {
    v1::AdvanceVersionRequest request;
    request.mutable_run()->set_run_id(run_id);
    request.mutable_run()->set_incarnation(known.request.incarnation());
    request.set_policy_version(known.policy_version);
    status = Send(&v1::RatioService::Stub::AdvanceVersion, request).status();
    // It knows a later one; or this is a worker, and trainers tell it.
    if (absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status)) {
      status = absl::OkStatus();
    }
  }
  if (status.ok()) Note(known.request, known.policy_version, /*confirmed=*/true);
  return status;
}

void SingleServer::Note(const v1::CreateRunRequest& run, uint64_t policy_version, bool confirmed) {
  const std::lock_guard lock(mutex_);
  KnownRun& known = known_[run.run_id()];
  if (known.request.incarnation() > run.incarnation()) return;
  if (known.request.incarnation() < run.incarnation()) known = {.request = run};
  if (confirmed) {
    known.confirmed = policy_version >= known.policy_version;
  } else if (policy_version > known.policy_version) {
    known.confirmed = false;
  }
  known.policy_version = std::max(known.policy_version, policy_version);
}

void SingleServer::Remember(const v1::CreateRunRequest& run, uint64_t policy_version) {
  Note(run, policy_version, /*confirmed=*/false);
}

SingleServer::KnownRun* SingleServer::Known(const v1::RunRef& run) {
  const auto found = known_.find(run.run_id());
  if (found == known_.end()) return nullptr;
  const bool is_named =
      run.incarnation() == 0 || run.incarnation() == found->second.request.incarnation();
  return is_named ? &found->second : nullptr;
}

std::optional<v1::RunConfig> SingleServer::KnownConfig(const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(run_id);
  if (found == known_.end()) return std::nullopt;
  return found->second.request.config();
}

absl::StatusOr<v1::CreateRunResponse> SingleServer::CreateRun(const v1::CreateRunRequest& request) {
  absl::StatusOr<v1::CreateRunResponse> response =
      Send(&v1::RatioService::Stub::CreateRun, request);
  if (!response.ok()) return response;
  v1::CreateRunRequest run = request;
  run.set_incarnation(response->incarnation());
  Note(run, /*policy_version=*/0, /*confirmed=*/true);
  return response;
}

absl::StatusOr<v1::GetRunResponse> SingleServer::GetRun(const v1::GetRunRequest& request) {
  absl::StatusOr<v1::GetRunResponse> response;
  const absl::Status status = SendAbout(request.run_id(), [&] {
    response = Send(&v1::RatioService::Stub::GetRun, request);
    return response.status();
  });
  if (!status.ok()) return status;
  v1::CreateRunRequest run;
  run.set_run_id(response->run().run_id());
  *run.mutable_config() = response->run().config();
  run.set_incarnation(response->run().incarnation());
  Note(run, response->run().policy_version(), /*confirmed=*/true);
  return response;
}

absl::StatusOr<v1::DeleteRunResponse> SingleServer::DeleteRun(const v1::DeleteRunRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    // Not to be opened again, even if no answer comes.
    if (Known(request.run()) != nullptr) known_.erase(request.run().run_id());
  }
  return Send(&v1::RatioService::Stub::DeleteRun, request);
}

absl::StatusOr<v1::AdvanceVersionResponse> SingleServer::AdvanceVersion(
    const v1::AdvanceVersionRequest& request) {
  {
    const std::lock_guard lock(mutex_);
    if (KnownRun* const known = Known(request.run()); known != nullptr) {
      known->policy_version = std::max<uint64_t>(known->policy_version, request.policy_version());
    }
  }
  return Ask(&v1::RatioService::Stub::AdvanceVersion, request);
}

absl::StatusOr<v1::EvaluateResponse> SingleServer::Evaluate(v1::EvaluateRequest request) {
  absl::StatusOr<v1::EvaluateResponse> response;
  const auto send = [&] {
    response = Send(&v1::RatioService::Stub::Evaluate, request);
    return response.status();
  };
  const auto drop_lease = [&] {
    const bool checked = std::ranges::all_of(
        request.slices(), [](const v1::Slice& slice) { return slice.has_record_digest(); });
    if (!checked || request.lease_id() == 0) return false;
    request.set_lease_id(0);
    return true;
  };
  const absl::Status status = SendAbout(request.run().run_id(), send, drop_lease);
  if (!status.ok()) return status;
  return response;
}

absl::Status SingleServer::ReadFetched(const v1::FetchTopKRequest& request, Receive receive) {
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::CompletionQueue queue;
  // One operation at a time, on this thread: waits for it, and says whether it succeeded.
  const auto succeeded = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = fetch_stub_.PrepareCall(&context, "/sis.v1.RatioService/FetchTopK", &queue);
  call->StartCall(nullptr);
  bool goes_on = succeeded();
  if (goes_on) {
    call->WriteLast(request, {}, nullptr);
    goes_on = succeeded();
  }
  absl::Status error;
  while (goes_on) {
    grpc::ByteBuffer bytes;
    call->Read(&bytes, nullptr);
    goes_on = succeeded();
    // An error does not end the loop: a gRPC stream must be read to its end.
    if (!goes_on || !error.ok()) continue;
    absl::StatusOr<FetchedMessage> message = ParseFetched(std::move(bytes));
    error = message.ok() ? receive(*std::move(message)) : message.status();
    if (!error.ok()) context.TryCancel();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  succeeded();
  return error.ok() ? ToAbslStatus(status) : error;
}

absl::Status SingleServer::FetchTopK(const v1::FetchTopKRequest& request, Receive receive) {
  // A server that refuses the call does so before it sends anything.
  const auto send = [&] { return Guarded([&] { return ReadFetched(request, receive); }); };
  return SendAbout(request.run().run_id(), send);
}

std::unique_ptr<ServerAppendWriter> SingleServer::OpenStream(const v1::AppendHeader& header,
                                                             const AppendOptions& options) {
  // What goes wrong here the stream meets itself, and tells at its first flush.
  if (KnownConfig(header.run().run_id())) OpenAgain(header.run().run_id()).IgnoreError();
  return std::make_unique<ServerAppendWriter>(stub_, header, options);
}

}  // namespace sis
