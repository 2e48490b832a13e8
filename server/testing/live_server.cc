#include "server/testing/live_server.h"

#include <utility>

#include "absl/status/statusor.h"
#include "server/main/server.h"

namespace sis {

LiveServer::LiveServer(const ServerOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::RatioService::NewStub(
      grpc::CreateCustomChannel(grpc_address(), grpc::InsecureChannelCredentials(), arguments));
}

LiveServer::~LiveServer() = default;

const std::string& LiveServer::grpc_address() const { return server_->grpc_address(); }

std::string LiveServer::admin_address() const { return server_->admin_address(); }

void LiveServer::Shutdown(absl::Duration grace) { server_->Shutdown(grace); }

}  // namespace sis
