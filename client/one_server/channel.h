// Connections to a server.
#pragma once

#include <memory>
#include <string>

#include "client/one_server/credentials.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace sis {

// A channel to host:port that takes messages of any size, and finds a server that comes back in
// about a second. The credentials must have been checked for it. With `own_connection` it shares
// none with other channels to the same address.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Credentials& credentials,
                                           bool own_connection = false);

}  // namespace sis
