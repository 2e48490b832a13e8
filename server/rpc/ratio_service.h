// The gRPC service sis.v1.RatioService: passes every call to the module that does the work.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/rpc/resources.h"

namespace sis {

// Returns a thread-safe service. The resources must outlive the gRPC server that registers it.
std::unique_ptr<grpc::Service> MakeRatioService(const Resources& resources);

}  // namespace sis
