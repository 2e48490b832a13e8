#include "server/main/own_port.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace sis {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(100);

// A port whose process never accepts connections.
class WedgedPort {
 public:
  WedgedPort() : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(descriptor_, any, size), 0);
    EXPECT_EQ(listen(descriptor_, 1), 0);
    EXPECT_EQ(getsockname(descriptor_, any, &size), 0);
    name_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~WedgedPort() { Close(); }

  void Close() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }
  const std::string& name() const { return name_; }

 private:
  int descriptor_;
  std::string name_;
};

TEST(OwnPortTest, GrpcAcceptsConnectionsUntilItStops) {
  // Paths of sockets must be short, and the test's own folder has a long one.
  const std::string file = absl::StrCat("unix:/tmp/own_port_", getpid());
  const std::string abstract = absl::StrCat("unix-abstract:own_port_", getpid());
  int port = 0, all = 0;
  grpc::CallbackGenericService service;
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&service);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddListeningPort("0.0.0.0:0", grpc::InsecureServerCredentials(), &all);
  builder.AddListeningPort(file, grpc::InsecureServerCredentials());
  builder.AddListeningPort(abstract, grpc::InsecureServerCredentials());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const std::string addresses[] = {absl::StrCat("127.0.0.1:", port),
                                   absl::StrCat("localhost:", port), absl::StrCat("0.0.0.0:", all),
                                   file, abstract};
  for (const std::string& address : addresses) {
    EXPECT_TRUE(AcceptsConnections({address, false}, kLong)) << address;
  }
  EXPECT_TRUE(IsTaken(file));
  server->Shutdown();
  server->Wait();
  for (const std::string& address : addresses) {
    EXPECT_FALSE(AcceptsConnections({address, false}, kShort)) << address;
  }
  EXPECT_FALSE(IsTaken(file));
}

TEST(OwnPortTest, TheSystemsQueueIsNoServer) {
  WedgedPort port;
  for (int i = 0; i < 4; ++i) {
    for (const bool tls : {false, true}) {
      EXPECT_FALSE(AcceptsConnections({port.name(), tls}, kShort)) << tls;
    }
  }
  port.Close();
  for (const bool tls : {false, true}) EXPECT_FALSE(AcceptsConnections({port.name(), tls}, kLong));
}

TEST(OwnPortTest, AnAddressThatIsNoneAcceptsNothing) {
  for (const std::string& name : {std::string(), std::string("127.0.0.1"), std::string("unix:"),
                                  "unix:/" + std::string(200, 'x')}) {
    EXPECT_FALSE(AcceptsConnections({name, false}, kShort)) << name;
    EXPECT_FALSE(IsTaken(name)) << name;
  }
}

}  // namespace
}  // namespace sis
