// The calls of sis.v1.RatioService as messages: what a Client makes them of, on one server or on
// several.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/one_server/append_writer.h"
#include "client/shared_memory/mapped_segments.h"
#include "client/shared_memory/shared_memory.h"
#include "client/types/fetched_message.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Thread-safe.
class Service {
 public:
  virtual ~Service() = default;

  virtual absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request) = 0;
  virtual absl::StatusOr<v1::GetRunResponse> GetRun(const v1::GetRunRequest& request) = 0;
  virtual absl::StatusOr<v1::DeleteRunResponse> DeleteRun(const v1::DeleteRunRequest& request) = 0;
  virtual absl::StatusOr<v1::ListRunsResponse> ListRuns(const v1::ListRunsRequest& request) = 0;
  virtual absl::StatusOr<v1::AdvanceVersionResponse> AdvanceVersion(
      const v1::AdvanceVersionRequest& request) = 0;
  virtual absl::StatusOr<v1::GetStepResponse> GetStep(const v1::GetStepRequest& request) = 0;
  virtual absl::StatusOr<v1::ListStepsResponse> ListSteps(const v1::ListStepsRequest& request) = 0;
  virtual absl::StatusOr<v1::GetHistoryResponse> GetHistory(
      const v1::GetHistoryRequest& request) = 0;
  virtual absl::StatusOr<v1::ListSequencesResponse> ListSequences(
      const v1::ListSequencesRequest& request) = 0;
  // Of each server, in the order in which they were named.
  virtual std::vector<absl::StatusOr<v1::GetServerResponse>> GetServers() = 0;
  virtual absl::StatusOr<v1::InspectRunResponse> InspectRun(
      const v1::InspectRunRequest& request) = 0;
  virtual absl::StatusOr<v1::InspectSequenceResponse> InspectSequence(
      const v1::InspectSequenceRequest& request) = 0;
  virtual absl::StatusOr<v1::ReleaseResponse> Release(const v1::ReleaseRequest& request) = 0;
  virtual absl::StatusOr<v1::EvaluateResponse> Evaluate(v1::EvaluateRequest request) = 0;

  // Hands on what comes, in order. An error of `receive` ends the call, and is returned.
  using Receive = std::function<absl::Status(FetchedMessage)>;
  virtual absl::Status FetchTopK(const v1::FetchTopKRequest& request, const Receive& receive) = 0;

  // Arrays in `segments`, which LeaseSharedMemory has added, need not travel.
  virtual std::unique_ptr<AppendWriter> Append(const v1::AppendHeader& header,
                                               const AppendOptions& options,
                                               std::shared_ptr<MappedSegments> segments) = 0;

  // Memory that the server maps too; `segments` hears of it.
  virtual absl::StatusOr<std::unique_ptr<SharedMemory>> LeaseSharedMemory(
      uint64_t bytes, std::shared_ptr<MappedSegments> segments) = 0;
};

}  // namespace sis
