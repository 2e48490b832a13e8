// The gRPC service: every method of sis.v1.RatioService, handed on to what does the work.
#pragma once

#include <grpcpp/grpcpp.h>

#include "kernels/decide/backend.h"
#include "server/append/room_queue.h"
#include "server/metrics/metrics.h"
#include "server/rpc/evaluate_task.h"
#include "server/shared_memory/segment_registry.h"
#include "server/threads/store_threads.h"
#include "server/threads/worker_pool.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// Append, FetchTopK, Evaluate and EvaluateStream exchange messages with gRPC as bytes, and leave
// the arrays in place (server/wire); the others have protobuf do it.
using LifecycleMethods = v1::RatioService::WithCallbackMethod_CreateRun<
    v1::RatioService::WithCallbackMethod_AdvanceVersion<
        v1::RatioService::WithCallbackMethod_GetRun<v1::RatioService::WithCallbackMethod_ListRuns<
            v1::RatioService::WithCallbackMethod_GetStep<v1::RatioService::Service>>>>>;
using RecordMethods =
    v1::RatioService::WithRawCallbackMethod_Append<v1::RatioService::WithCallbackMethod_Release<
        v1::RatioService::WithRawCallbackMethod_FetchTopK<LifecycleMethods>>>;
using EvaluateMethods = v1::RatioService::WithRawCallbackMethod_Evaluate<
    v1::RatioService::WithRawCallbackMethod_EvaluateStream<RecordMethods>>;
using AllMethods = v1::RatioService::WithCallbackMethod_LeaseSegment<EvaluateMethods>;

// Thread-safe. Everything it is given must outlive the gRPC server that it is registered with.
class RatioService final : public AllMethods {
 public:
  RatioService(StoredRuns& runs, RoomQueue& room_queue, Metrics& metrics, const Backend& backend,
               WorkerPool& workers, StoreThreads& store_threads, SegmentRegistry& segments)
      : runs_(runs),
        room_queue_(room_queue),
        metrics_(metrics),
        evaluators_{runs, backend, workers, segments},
        store_threads_(store_threads) {}

  grpc::ServerUnaryReactor* CreateRun(grpc::CallbackServerContext* context,
                                      const v1::CreateRunRequest* request,
                                      v1::CreateRunResponse* response) override;
  grpc::ServerUnaryReactor* AdvanceVersion(grpc::CallbackServerContext* context,
                                           const v1::AdvanceVersionRequest* request,
                                           v1::AdvanceVersionResponse* response) override;
  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* context,
                                   const v1::GetRunRequest* request,
                                   v1::GetRunResponse* response) override;
  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                     const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override;
  grpc::ServerUnaryReactor* GetStep(grpc::CallbackServerContext* context,
                                    const v1::GetStepRequest* request,
                                    v1::GetStepResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Append(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchTopK(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Evaluate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* EvaluateStream(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::LeaseSegmentResponse>* LeaseSegment(
      grpc::CallbackServerContext* context, const v1::LeaseSegmentRequest* request) override;

 private:
  StoredRuns& runs_;
  RoomQueue& room_queue_;
  Metrics& metrics_;
  const Evaluators evaluators_;
  StoreThreads& store_threads_;
};

}  // namespace sis
