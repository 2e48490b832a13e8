// A live server, and calls of which the answers are put together.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "server/testing/live_server.h"

namespace sis {

class Connection {
 public:
  LiveServer& live() { return live_; }
  void CreateRun(const v1::CreateRunRequest& request) { live_.CreateRun(request); }

  // The calls of LiveServer.
  LiveServer::Appended Append(const std::vector<v1::AppendRequest>& requests) {
    return live_.Append(requests);
  }
  grpc::Status Evaluate(const v1::EvaluateRequest& request, v1::EvaluateResponse& response) {
    return live_.Evaluate(request, response);
  }
  // The rows of all slices, side by side.
  grpc::Status FetchTopK(const v1::FetchTopKRequest& request, v1::FetchTopKChunk& rows) {
    grpc::ClientContext context;
    const auto stream = live_.stub().FetchTopK(&context, request);
    rows.Clear();
    v1::FetchTopKResponse response;
    while (stream->Read(&response)) {
      if (!response.has_chunk()) continue;
      const v1::FetchTopKChunk& chunk = response.chunk();
      rows.set_length(rows.length() + chunk.length());
      rows.mutable_sampled_ids()->append(chunk.sampled_ids());
      rows.mutable_sampled_log_probs()->append(chunk.sampled_log_probs());
      rows.mutable_top_k_ids()->append(chunk.top_k_ids());
      rows.mutable_top_k_log_probs()->append(chunk.top_k_log_probs());
    }
    return stream->Finish();
  }

 private:
  LiveServer live_;
};

}  // namespace sis
