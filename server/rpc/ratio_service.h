// The gRPC service: every method of sis.v1.RatioService, handed on to what does the work.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/rpc/resources.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// All methods exchange messages with gRPC as bytes: so those with arrays leave them in place
// (server/wire), and what is no message is refused in words; gRPC would say UNIMPLEMENTED.
using LifecycleMethods = v1::RatioService::WithRawCallbackMethod_CreateRun<
    v1::RatioService::WithRawCallbackMethod_AdvanceVersion<
        v1::RatioService::WithRawCallbackMethod_GetRun<
            v1::RatioService::WithRawCallbackMethod_ListRuns<
                v1::RatioService::WithRawCallbackMethod_DeleteRun<
                    v1::RatioService::WithRawCallbackMethod_GetStep<v1::RatioService::Service>>>>>>;
using ListingMethods = v1::RatioService::WithRawCallbackMethod_ListSteps<
    v1::RatioService::WithRawCallbackMethod_ListSequences<
        v1::RatioService::WithRawCallbackMethod_GetServer<LifecycleMethods>>>;
using InspectionMethods = v1::RatioService::WithRawCallbackMethod_InspectRun<
    v1::RatioService::WithRawCallbackMethod_InspectSequence<ListingMethods>>;
using RecordMethods =
    v1::RatioService::WithRawCallbackMethod_Append<v1::RatioService::WithRawCallbackMethod_Release<
        v1::RatioService::WithRawCallbackMethod_FetchTopK<InspectionMethods>>>;
using EvaluateMethods = v1::RatioService::WithRawCallbackMethod_Evaluate<
    v1::RatioService::WithRawCallbackMethod_EvaluateStream<RecordMethods>>;
using AllMethods = v1::RatioService::WithRawCallbackMethod_LeaseSegment<EvaluateMethods>;

// Thread-safe. Everything it is given must outlive the gRPC server that it is registered with.
class RatioService final : public AllMethods {
 public:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  explicit RatioService(const Resources& resources) : resources_(resources) {}

  Unary* CreateRun(Context* context, const grpc::ByteBuffer* request,
                   grpc::ByteBuffer* response) override;
  Unary* AdvanceVersion(Context* context, const grpc::ByteBuffer* request,
                        grpc::ByteBuffer* response) override;
  Unary* GetRun(Context* context, const grpc::ByteBuffer* request,
                grpc::ByteBuffer* response) override;
  Unary* ListRuns(Context* context, const grpc::ByteBuffer* request,
                  grpc::ByteBuffer* response) override;
  Unary* DeleteRun(Context* context, const grpc::ByteBuffer* request,
                   grpc::ByteBuffer* response) override;
  Unary* GetStep(Context* context, const grpc::ByteBuffer* request,
                 grpc::ByteBuffer* response) override;
  Unary* ListSteps(Context* context, const grpc::ByteBuffer* request,
                   grpc::ByteBuffer* response) override;
  Unary* ListSequences(Context* context, const grpc::ByteBuffer* request,
                       grpc::ByteBuffer* response) override;
  Unary* GetServer(Context* context, const grpc::ByteBuffer* request,
                   grpc::ByteBuffer* response) override;
  Unary* InspectRun(Context* context, const grpc::ByteBuffer* request,
                    grpc::ByteBuffer* response) override;
  Unary* InspectSequence(Context* context, const grpc::ByteBuffer* request,
                         grpc::ByteBuffer* response) override;
  Stream* Append(Context* context) override;
  Unary* Release(Context* context, const grpc::ByteBuffer* request,
                 grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchTopK(Context* context,
                                                        const grpc::ByteBuffer* request) override;
  Unary* Evaluate(Context* context, const grpc::ByteBuffer* request,
                  grpc::ByteBuffer* response) override;
  Stream* EvaluateStream(Context* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* LeaseSegment(
      Context* context, const grpc::ByteBuffer* request) override;

 private:
  // A unary call.
  struct Call {
    Context* context;
    const char* method;
    const grpc::ByteBuffer* request;
    grpc::ByteBuffer* response;
  };
  // Answers a call with what handler(caller, request, response) fills in and returns, an
  // absl::Status; unless the caller may not make it.
  template <typename Request, typename Response, typename Handler>
  Unary* Answer(const Call& call, Handler handler);
  // The same of a run: handler(run, request, response).
  template <typename Request, typename Response, typename Handler>
  Unary* AnswerOfRun(const Call& call, Handler handler);

  const Resources resources_;
};

}  // namespace sis
