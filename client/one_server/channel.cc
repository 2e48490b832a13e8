#include "client/one_server/channel.h"

namespace sis {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, bool own_connection) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Large messages come in few frames; by default they are of 16 KiB.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  // A server that comes back may have another address. By default that may take minutes to see.
  // An attempt to connect that gets no answer is given up after 3 seconds (the minimum between
  // attempts), by default after 20.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, own_connection ? 1 : 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace sis
