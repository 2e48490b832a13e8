// The gRPC service: every method of sis.v1.RatioService, handed on to what does the work.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/rpc/resources.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// Append, FetchTopK, Evaluate and EvaluateStream exchange messages with gRPC as bytes, and leave
// the arrays in place (server/wire); the others have protobuf do it.
using LifecycleMethods = v1::RatioService::WithCallbackMethod_CreateRun<
    v1::RatioService::WithCallbackMethod_AdvanceVersion<
        v1::RatioService::WithCallbackMethod_GetRun<v1::RatioService::WithCallbackMethod_ListRuns<
            v1::RatioService::WithCallbackMethod_DeleteRun<
                v1::RatioService::WithCallbackMethod_GetStep<v1::RatioService::Service>>>>>>;
using RecordMethods =
    v1::RatioService::WithRawCallbackMethod_Append<v1::RatioService::WithCallbackMethod_Release<
        v1::RatioService::WithRawCallbackMethod_FetchTopK<LifecycleMethods>>>;
using EvaluateMethods = v1::RatioService::WithRawCallbackMethod_Evaluate<
    v1::RatioService::WithRawCallbackMethod_EvaluateStream<RecordMethods>>;
using AllMethods = v1::RatioService::WithCallbackMethod_LeaseSegment<EvaluateMethods>;

// Thread-safe. Everything it is given must outlive the gRPC server that it is registered with.
class RatioService final : public AllMethods {
 public:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  explicit RatioService(const Resources& resources) : resources_(resources) {}

  Unary* CreateRun(Context* context, const v1::CreateRunRequest* request,
                   v1::CreateRunResponse* response) override;
  Unary* AdvanceVersion(Context* context, const v1::AdvanceVersionRequest* request,
                        v1::AdvanceVersionResponse* response) override;
  Unary* GetRun(Context* context, const v1::GetRunRequest* request,
                v1::GetRunResponse* response) override;
  Unary* ListRuns(Context* context, const v1::ListRunsRequest* request,
                  v1::ListRunsResponse* response) override;
  Unary* DeleteRun(Context* context, const v1::DeleteRunRequest* request,
                   v1::DeleteRunResponse* response) override;
  Unary* GetStep(Context* context, const v1::GetStepRequest* request,
                 v1::GetStepResponse* response) override;
  Stream* Append(Context* context) override;
  Unary* Release(Context* context, const v1::ReleaseRequest* request,
                 v1::ReleaseResponse* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchTopK(Context* context,
                                                        const grpc::ByteBuffer* request) override;
  Unary* Evaluate(Context* context, const grpc::ByteBuffer* request,
                  grpc::ByteBuffer* response) override;
  Stream* EvaluateStream(Context* context) override;
  grpc::ServerWriteReactor<v1::LeaseSegmentResponse>* LeaseSegment(
      Context* context, const v1::LeaseSegmentRequest* request) override;

 private:
  // Answers a unary call with what the handler fills in and returns, an absl::Status.
  template <typename Handler>
  Unary* Answer(Context* context, const char* method, Handler handler);
  // The same, of a run, which the handler is given.
  template <typename Handler>
  Unary* AnswerOfRun(Context* context, const char* method, const v1::RunRef& run, Handler handler);

  const Resources resources_;
};

}  // namespace sis
