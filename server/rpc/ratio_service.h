// The gRPC service sis.v1.RatioService: passes every call to the module that does the work.
#pragma once

#include <memory>

#include "server/rpc/resources.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// Returns a thread-safe service. The resources must outlive the gRPC server that registers it.
std::unique_ptr<v1::RatioService::Service> MakeRatioService(const Resources& resources);

}  // namespace sis
