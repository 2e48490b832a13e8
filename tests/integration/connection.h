// A live server, and a client that has its arrays in the messages or in a leased segment: the two
// must mean the same.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/testing/live_server.h"
#include "tests/integration/leased_segment.h"

namespace sis {

enum class ArraysIn { kMessages, kSegment };

// For INSTANTIATE_TEST_SUITE_P.
inline auto EitherWay() { return testing::Values(ArraysIn::kMessages, ArraysIn::kSegment); }
inline std::string NameOfWay(const testing::TestParamInfo<ArraysIn>& info) {
  return info.param == ArraysIn::kSegment ? "ArraysInSegment" : "ArraysInMessages";
}

class Connection {
 public:
  explicit Connection(ArraysIn arrays)
      : live_(arrays == ArraysIn::kSegment ? LiveServer::SharedMemoryOptions(kSegmentBytes)
                                           : LiveServer::Options()) {
    if (arrays != ArraysIn::kSegment) return;
    segment_ = std::make_unique<LeasedSegment>(live_.stub(), kSegmentBytes);
    EXPECT_TRUE(segment_->status().ok()) << segment_->status().error_message();
  }

  LiveServer& live() { return live_; }
  void CreateRun(const v1::CreateRunRequest& request) { live_.CreateRun(request); }

  // The calls of LiveServer. Requests and responses hold their arrays in the message here, wherever
  // the arrays travel.
  LiveServer::Appended Append(std::vector<v1::AppendRequest> requests) {
    if (segment_ != nullptr) {
      segment_->Clear();
      for (v1::AppendRequest& request : requests) {
        if (!request.has_batch()) continue;
        segment_->PutArrays(request);
        request.mutable_batch()->set_segment(segment_->name());
      }
    }
    return live_.Append(requests);
  }
  grpc::Status Evaluate(v1::EvaluateRequest request, v1::EvaluateResponse& response) {
    if (segment_ == nullptr) return live_.Evaluate(request, response);
    segment_->Clear();
    segment_->PutArrays(request);
    request.set_segment(segment_->name());
    *request.mutable_answers() = segment_->Rest();
    const grpc::Status status = live_.Evaluate(request, response);
    if (status.ok()) segment_->GetArrays(response);
    return status;
  }
  // The rows of all slices, side by side.
  grpc::Status FetchTopK(v1::FetchTopKRequest request, v1::FetchTopKChunk& rows) {
    if (segment_ != nullptr) {
      segment_->Clear();
      request.set_segment(segment_->name());
      *request.mutable_answers() = segment_->Rest();
    }
    grpc::ClientContext context;
    const auto stream = live_.stub().FetchTopK(&context, request);
    rows.Clear();
    v1::FetchTopKResponse response;
    while (stream->Read(&response)) {
      if (!response.has_chunk()) continue;
      v1::FetchTopKChunk& chunk = *response.mutable_chunk();
      if (segment_ != nullptr) segment_->GetArrays(chunk);
      rows.set_length(rows.length() + chunk.length());
      rows.mutable_sampled_ids()->append(chunk.sampled_ids());
      rows.mutable_sampled_log_probs()->append(chunk.sampled_log_probs());
      rows.mutable_top_k_ids()->append(chunk.top_k_ids());
      rows.mutable_top_k_log_probs()->append(chunk.top_k_log_probs());
    }
    return stream->Finish();
  }

 private:
  static constexpr int64_t kSegmentBytes = 8 << 20;
  // Arrays in a response.

  LiveServer live_;
  std::unique_ptr<LeasedSegment> segment_;  // null: arrays are in the messages
};

}  // namespace sis
