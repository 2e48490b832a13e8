// The least that a server does for a stream: reads a message, answers so many bytes, reads the
// next, as the service's Append does, by gRPC's callbacks on the threads that gRPC has.
//
//     echo_server LISTEN ANSWER_BYTES
//
// LISTEN is 127.0.0.1:0 or unix:PATH. Prints the address, then serves until it is killed.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

namespace {

// Owns itself.
class EchoStream final : public grpc::ServerGenericBidiReactor {
 public:
  explicit EchoStream(grpc::ByteBuffer answer) : answer_(std::move(answer)) { StartRead(&read_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    written_ = answer_;
    StartWrite(&written_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&read_);
  }
  void OnDone() override { delete this; }

 private:
  const grpc::ByteBuffer answer_;
  grpc::ByteBuffer read_;
  grpc::ByteBuffer written_;
};

class EchoService final : public grpc::CallbackGenericService {
 public:
  explicit EchoService(size_t answer_bytes) {
    const grpc::Slice slice(std::string(answer_bytes, 'a'));
    answer_ = grpc::ByteBuffer(&slice, 1);
  }
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new EchoStream(answer_);
  }

 private:
  grpc::ByteBuffer answer_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string listen = argv[1];
  EchoService service(std::stoul(argv[2]));
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&service);
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  const bool is_unix = listen.starts_with("unix:");
  std::cout << (is_unix ? listen : "127.0.0.1:" + std::to_string(port)) << std::endl;
  server->Wait();
}
