// A real server on a real port, with the calls that integration tests share.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/main/server_options.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

class Server;

// Returns the bytes of an array field.
template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> Values(const std::string& bytes) {
  const T* first = reinterpret_cast<const T*>(bytes.data());
  return {first, first + bytes.size() / sizeof(T)};
}

class LiveServer {
 public:
  explicit LiveServer(const ServerOptions& options = Options());
  ~LiveServer();

  static ServerOptions Options() {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.admin = "";
    options.cache_bytes = 64 << 20;
    return options;
  }

  // See server/main/server.h.
  const std::string& grpc_address() const;
  std::string admin_address() const;
  void Shutdown(absl::Duration grace);
  v1::RatioService::Stub& stub() { return *stub_; }

  // The config is lossless: records are read back as they were sent.
  static v1::CreateRunRequest RunRequest(const std::string& id, uint32_t top_k,
                                         uint32_t vocabulary_size, uint64_t seed = 1) {
    v1::CreateRunRequest request;
    request.set_run_id(id);
    request.mutable_config()->set_seed(seed);
    request.mutable_config()->set_top_k(top_k);
    request.mutable_config()->set_vocabulary_size(vocabulary_size);
    request.mutable_config()->set_log_prob_encoding(v1::LOG_PROB_ENCODING_FLOAT32);
    return request;
  }

  void CreateRun(const v1::CreateRunRequest& request) {
    grpc::ClientContext context;
    v1::CreateRunResponse response;
    const grpc::Status status = stub_->CreateRun(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  static v1::AppendRequest Header(const std::string& run_id, uint32_t vocabulary_size) {
    v1::AppendRequest request;
    v1::AppendHeader& header = *request.mutable_header();
    header.mutable_run()->set_run_id(run_id);
    header.set_worker("test");
    header.set_vocabulary_size(vocabulary_size);
    header.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_RAW);
    header.mutable_sampling()->set_temperature(1);
    return request;
  }

  // Sends the messages over one stream, one after the other. Returns all responses, and the status
  // of the stream.
  struct Appended {
    std::vector<v1::Ack> acks;
    grpc::Status status;
  };
  Appended Append(const std::vector<v1::AppendRequest>& requests) {
    Appended result;
    grpc::ClientContext context;
    auto stream = stub_->Append(&context);
    for (const v1::AppendRequest& request : requests) {
      if (!stream->Write(request)) break;
      v1::AppendResponse response;
      if (request.has_batch() && stream->Read(&response)) {
        result.acks.insert(result.acks.end(), response.acks().begin(), response.acks().end());
      }
    }
    stream->WritesDone();
    v1::AppendResponse rest;
    while (stream->Read(&rest)) {
    }
    result.status = stream->Finish();
    return result;
  }

  grpc::Status Evaluate(const v1::EvaluateRequest& request, v1::EvaluateResponse& response) {
    grpc::ClientContext context;
    return stub_->Evaluate(&context, request, &response);
  }

 private:
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::RatioService::Stub> stub_;
};

}  // namespace sis
