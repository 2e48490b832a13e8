// A service that answers as a test says: what a real server does only when it is overloaded, broken
// or wrong.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/api/client.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// Arrays as they stand in a message.
template <typename T>
std::vector<T> Array(const std::string& bytes) {
  std::vector<T> array(bytes.size() / sizeof(T));
  std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
}

template <typename T>
std::string Bytes(const std::vector<T>& array) {
  return std::string(reinterpret_cast<const char*>(array.data()), array.size() * sizeof(T));
}

// Test and handlers exchange everything under one lock. gRPC orders them too, but it is not
// instrumented, so that ThreadSanitizer can't see it.
class ScriptedService final : public v1::RatioService::Service {
 public:
  using ServerStream = grpc::ServerReaderWriter<v1::AppendResponse, v1::AppendRequest>;

  // What `append` refers to must be complete by now.
  void OnAppend(std::function<grpc::Status(ServerStream&)> append) {
    const std::lock_guard lock(mutex_);
    append_ = std::move(append);
  }
  // Once the client knows that the stream has ended: what `append` wrote may be read.
  void AppendHasEnded() { const std::lock_guard lock(mutex_); }

  void AnswerFetch(std::vector<v1::FetchTopKResponse> answer) {
    const std::lock_guard lock(mutex_);
    fetch_answer_ = std::move(answer);
  }
  v1::FetchTopKRequest fetch_request() {
    const std::lock_guard lock(mutex_);
    return fetch_request_;
  }

  void AnswerEvaluate(v1::EvaluateResponse answer) {
    const std::lock_guard lock(mutex_);
    evaluate_answer_ = std::move(answer);
  }
  v1::EvaluateRequest evaluate_request() {
    const std::lock_guard lock(mutex_);
    return evaluate_request_;
  }

  grpc::Status Append(grpc::ServerContext*, ServerStream* stream) override {
    const std::lock_guard lock(mutex_);
    return append_(*stream);
  }
  grpc::Status FetchTopK(grpc::ServerContext*, const v1::FetchTopKRequest* request,
                         grpc::ServerWriter<v1::FetchTopKResponse>* writer) override {
    const std::lock_guard lock(mutex_);
    fetch_request_ = *request;
    for (const v1::FetchTopKResponse& response : fetch_answer_) writer->Write(response);
    return grpc::Status::OK;
  }
  grpc::Status Evaluate(grpc::ServerContext*, const v1::EvaluateRequest* request,
                        v1::EvaluateResponse* response) override {
    const std::lock_guard lock(mutex_);
    evaluate_request_ = *request;
    *response = evaluate_answer_;
    while (response->slice_totals_size() < request->slices_size()) response->add_slice_totals();
    return grpc::Status::OK;
  }
  // What it says of any run's settings; nothing, if it isn't told.
  void AnswerRun(v1::RunConfig config) {
    const std::lock_guard lock(mutex_);
    config_ = std::move(config);
  }

  // Of a run it keeps the name alone, as a server that knows nothing of its settings.
  grpc::Status CreateRun(grpc::ServerContext*, const v1::CreateRunRequest* request,
                         v1::CreateRunResponse* response) override {
    const std::lock_guard lock(mutex_);
    run_id_ = request->run_id();
    response->set_incarnation(1);
    return grpc::Status::OK;
  }
  grpc::Status GetRun(grpc::ServerContext*, const v1::GetRunRequest* request,
                      v1::GetRunResponse* response) override {
    const std::lock_guard lock(mutex_);
    response->mutable_run()->set_run_id(run_id_);
    response->mutable_run()->set_incarnation(1);
    *response->mutable_run()->mutable_config() = config_;
    if (request->run_id() == run_id_) return grpc::Status::OK;
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no run " + request->run_id());
  }

 private:
  std::mutex mutex_;
  std::string run_id_;
  v1::RunConfig config_;
  std::function<grpc::Status(ServerStream&)> append_;
  std::vector<v1::FetchTopKResponse> fetch_answer_;
  v1::FetchTopKRequest fetch_request_;
  v1::EvaluateResponse evaluate_answer_;
  v1::EvaluateRequest evaluate_request_;
};

// A server with the service; the address it listens at.
inline std::unique_ptr<grpc::Server> StartServer(ScriptedService& service, std::string& address) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  address = "127.0.0.1:" + std::to_string(port);
  return server;
}

class ScriptedServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = StartServer(service_, address_);
    auto client = Client::Connect(address_);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  ScriptedService service_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace sis
