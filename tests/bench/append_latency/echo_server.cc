// The least that a server does for a stream: reads a message, answers so many bytes, reads the
// next, as the service's Append does, by gRPC's callbacks on the threads that gRPC has. Calls of
// Append itself get acks: protobuf parses their messages, but nothing is checked or stored.
//
//     echo_server LISTEN ANSWER_BYTES
//
// LISTEN is 127.0.0.1:0 or unix:PATH. Prints the address, then serves until it is killed.
#include <google/protobuf/arena.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "sis/v1/ratio_service.grpc.pb.h"

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

// Owns itself.
class AckStream final
    : public grpc::ServerBidiReactor<sis::v1::AppendRequest, sis::v1::AppendResponse> {
 public:
  AckStream() { ReadNext(); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (request_->has_header()) return ReadNext();
    for (const sis::v1::AppendEntry& entry : request_->batch().entries()) {
      *response_->add_acks()->mutable_sequence() = entry.sequence();
    }
    StartWrite(response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    ReadNext();
  }
  void OnDone() override { delete this; }

 private:
  void ReadNext() {
    arena_.Reset();
    request_ = google::protobuf::Arena::CreateMessage<sis::v1::AppendRequest>(&arena_);
    response_ = google::protobuf::Arena::CreateMessage<sis::v1::AppendResponse>(&arena_);
    StartRead(request_);
  }

  google::protobuf::Arena arena_;
  sis::v1::AppendRequest* request_ = nullptr;
  sis::v1::AppendResponse* response_ = nullptr;
};

class AckService final
    : public sis::v1::RatioService::WithCallbackMethod_Append<sis::v1::RatioService::Service> {
  grpc::ServerBidiReactor<sis::v1::AppendRequest, sis::v1::AppendResponse>* Append(
      grpc::CallbackServerContext*) override {
    return new AckStream;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string listen = argv[1];
  EchoService echo(std::stoul(argv[2]));
  AckService ack;
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&echo);
  builder.RegisterService(&ack);
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  const bool is_unix = listen.starts_with("unix:");
  std::cout << (is_unix ? listen : "127.0.0.1:" + std::to_string(port)) << std::endl;
  server->Wait();
}
