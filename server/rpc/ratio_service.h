// The gRPC service: every method of sis.v1.RatioService, handed on to what does the work.
#pragma once

#include <google/protobuf/descriptor.h>

#include "server/cache/caller.h"
#include "server/cache/run.h"
#include "server/rpc/resources.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// All methods exchange messages with gRPC as bytes: so those with arrays leave them in place
// (server/wire), and what is no message is refused in words; gRPC would say UNIMPLEMENTED.
// Thread-safe. Everything it is given must outlive the gRPC server that it is registered with.
class RatioService final : public v1::RatioService::Service {
 public:
  explicit RatioService(const Resources& resources);

 private:
  // Answers the method of these messages with what the handler fills in, unless the caller may not
  // call it.
  template <typename Request, typename Response>
  void Answer(absl::Status (*handler)(const Resources& resources, const Caller& caller,
                                      const Request& request, Response& response));
  // The same of the run that the request names.
  template <typename Request, typename Response>
  void AnswerOfRun(absl::Status (*handler)(const Resources& resources, Run& run,
                                           const Request& request, Response& response));
  // handler(caller, request, response).
  template <typename Request, typename Response, typename Handler>
  void AnswerBy(Handler handler);
  // start(context, caller, received, answered, finish) sees to it that a call is finished once it
  // is answered.
  template <typename Start>
  void AddUnary(const google::protobuf::MethodDescriptor& method, const Start& start);
  void AddEvaluate();
  void AddStreams();

  const Resources resources_;
};

}  // namespace sis
