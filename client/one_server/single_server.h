// One server: its calls, and what it is told again when it comes back without memory.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/one_server/circuit_breaker.h"
#include "client/one_server/server_append_writer.h"
#include "client/types/fetched_message.h"
#include "client/types/grpc_status.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// A run that the server has lost, or holds in an older incarnation, is opened again, told its
// policy version, and the call repeated once (docs/adr/0012): the records are gone, but training
// goes on. Only runs that were opened or looked up here are known well enough.
class SingleServer {
 public:
  template <typename Request, typename Response>
  using Method = grpc::Status (v1::RatioService::Stub::*)(grpc::ClientContext*, const Request&,
                                                          Response*);
  using Receive = absl::FunctionRef<absl::Status(FetchedMessage)>;

  // call_timeout is for all calls but Append. `breaker`: of one of several replicas; else null.
  SingleServer(const std::shared_ptr<grpc::Channel>& channel, absl::Duration call_timeout,
               std::unique_ptr<CircuitBreaker> breaker);

  // Any call that needs no more than the run that its request names, if it names one.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(Method<Request, Response> method, const Request& request);

  // These change what is known of the run here.
  absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request);
  absl::StatusOr<v1::GetRunResponse> GetRun(const v1::GetRunRequest& request);
  absl::StatusOr<v1::DeleteRunResponse> DeleteRun(const v1::DeleteRunRequest& request);
  absl::StatusOr<v1::AdvanceVersionResponse> AdvanceVersion(
      const v1::AdvanceVersionRequest& request);

  // A lease that has ended is no error where every slice has a digest: changed records are noticed
  // without it.
  absl::StatusOr<v1::EvaluateResponse> Evaluate(v1::EvaluateRequest request);
  // Hands on what comes, in order. An error of `receive` ends the call, and is returned.
  absl::Status FetchTopK(const v1::FetchTopKRequest& request, Receive receive);
  std::unique_ptr<ServerAppendWriter> OpenStream(const v1::AppendHeader& header,
                                                 const AppendOptions& options);

  // Unavailable if the server is not to be asked at present: CircuitBreaker says when.
  absl::Status Admit();
  // An append stream got no answer, with this status, to what it sent so long ago.
  void Failed(const absl::Status& status, absl::Duration waited);

  // Notes a run, with its incarnation, to be opened again should the server not have it.
  void Remember(const v1::CreateRunRequest& run, uint64_t policy_version = 0);
  // Of a run that is known here.
  std::optional<v1::RunConfig> KnownConfig(const std::string& run_id) const;

 private:
  struct KnownRun {
    v1::CreateRunRequest request;  // names the incarnation
    uint64_t policy_version = 0;
    // Whether the server is known to have the run at that version.
    bool confirmed = false;
  };

  // The incarnation that is named, if it is known; with mutex_ held.
  KnownRun* Known(const v1::RunRef& run);
  void Note(const v1::CreateRunRequest& run, uint64_t policy_version, bool confirmed);
  // Tells the server all that is known of the run.
  absl::Status OpenAgain(const std::string& run_id);
  template <typename Request, typename Response>
  absl::StatusOr<Response> Send(Method<Request, Response> method, const Request& request);
  absl::Status ReadFetched(const v1::FetchTopKRequest& request, Receive receive);
  // Asks, unless the server is to be left alone. Notes that a server which gives no answer may be
  // behind when it does.
  absl::Status Guarded(CircuitBreaker::Ask ask);
  absl::Status Probe();
  void SetDeadline(grpc::ClientContext& context) const;
  // Calls send(), and once more if the server may have lost the run. amend() changes what is sent
  // then, and says whether it did.
  absl::Status SendAbout(
      const std::string& run_id, CircuitBreaker::Ask send,
      absl::FunctionRef<bool()> amend = [] { return false; });

  const std::shared_ptr<v1::RatioService::Stub> stub_;
  // Its answers are left as gRPC received them.
  grpc::TemplatedGenericStub<v1::FetchTopKRequest, grpc::ByteBuffer> fetch_stub_;
  const absl::Duration call_timeout_;
  const std::unique_ptr<CircuitBreaker> breaker_;
  mutable std::mutex mutex_;
  std::map<std::string, KnownRun> known_;  // by run id; guarded by mutex_
};

template <typename Request, typename Response>
absl::StatusOr<Response> SingleServer::Send(Method<Request, Response> method,
                                            const Request& request) {
  Response response;
  const absl::Status status = Guarded([&] {
    grpc::ClientContext context;
    SetDeadline(context);
    return ToAbslStatus(((*stub_).*method)(&context, request, &response));
  });
  if (!status.ok()) return status;
  return response;
}

template <typename Request, typename Response>
absl::StatusOr<Response> SingleServer::Ask(Method<Request, Response> method,
                                           const Request& request) {
  if constexpr (requires { request.run(); }) {
    absl::StatusOr<Response> response;
    const absl::Status status = SendAbout(request.run().run_id(), [&] {
      response = Send(method, request);
      return response.status();
    });
    if (!status.ok()) return status;
    return response;
  } else {
    return Send(method, request);
  }
}

}  // namespace sis
