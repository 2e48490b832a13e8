// Connections to a server.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace sis {

// A channel to host:port that takes messages of any size, and finds a server that comes back in
// about a second. With `own_connection` it shares none with other channels to the same address.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, bool own_connection = false);

}  // namespace sis
