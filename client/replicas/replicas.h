// Several servers as one: sequences placed by docs/placement.md, batches split and merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/one_server/service.h"
#include "client/one_server/single_server.h"
#include "client/replicas/placement.h"
#include "client/types/grpc_status.h"

namespace sis {

// A replica that gives no answer is passed over, and its sequences are MISSING (STORE_DOWN); for a
// while it is not asked again. If every one is needed and none answers, the call fails as with one
// server. Any other error of a replica is an error of the call.
class Replicas final : public Service {
 public:
  // As many names as servers, at least one, each once.
  Replicas(const std::vector<std::string>& names,
           std::vector<std::shared_ptr<SingleServer>> servers);

  absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request) override;
  absl::StatusOr<v1::GetRunResponse> GetRun(const v1::GetRunRequest& request) override;
  absl::StatusOr<v1::DeleteRunResponse> DeleteRun(const v1::DeleteRunRequest& request) override;
  absl::StatusOr<v1::ListRunsResponse> ListRuns(const v1::ListRunsRequest& request) override;
  absl::StatusOr<v1::AdvanceVersionResponse> AdvanceVersion(
      const v1::AdvanceVersionRequest& request) override;
  absl::StatusOr<v1::GetStepResponse> GetStep(const v1::GetStepRequest& request) override;
  absl::StatusOr<v1::ListStepsResponse> ListSteps(const v1::ListStepsRequest& request) override;
  absl::StatusOr<v1::GetHistoryResponse> GetHistory(const v1::GetHistoryRequest& request) override;
  absl::StatusOr<v1::ListSequencesResponse> ListSequences(
      const v1::ListSequencesRequest& request) override;
  std::vector<absl::StatusOr<v1::GetServerResponse>> GetServers() override;
  absl::StatusOr<v1::InspectRunResponse> InspectRun(const v1::InspectRunRequest& request) override;
  absl::StatusOr<v1::InspectSequenceResponse> InspectSequence(
      const v1::InspectSequenceRequest& request) override;
  absl::StatusOr<v1::ReleaseResponse> Release(const v1::ReleaseRequest& request) override;
  absl::StatusOr<v1::EvaluateResponse> Evaluate(v1::EvaluateRequest request) override;
  absl::Status FetchTopK(const v1::FetchTopKRequest& request, const Receive& receive) override;
  std::unique_ptr<AppendWriter> Append(const v1::AppendHeader& header, const AppendOptions& options,
                                       std::shared_ptr<MappedSegments> segments) override;
  absl::StatusOr<std::unique_ptr<SharedMemory>> LeaseSharedMemory(
      uint64_t bytes, std::shared_ptr<MappedSegments> segments) override;

 private:
  // By replica.
  template <typename Response>
  struct Answers {
    std::map<size_t, Response> given;
    std::map<size_t, absl::Status> down;
    // Of those that said NotFound where that is no error; else OK.
    absl::Status unknown;
  };
  // The slices of a request that a replica has, by their numbers.
  using Parts = std::map<size_t, std::vector<int>>;
  // What stands behind a lease that was handed out: the lease of each replica.
  using Leases = std::map<size_t, uint64_t>;

  template <typename Response>
  using Ask = std::function<absl::StatusOr<Response>(size_t replica)>;
  // Asks these replicas at once.
  template <typename Response>
  absl::StatusOr<Answers<Response>> AskSome(const std::vector<size_t>& replicas,
                                            const Ask<Response>& ask,
                                            bool unknown_is_none = false) const;
  template <typename Request, typename Response>
  using Method = absl::StatusOr<Response> (SingleServer::*)(const Request& request);
  // Sends all the same.
  template <typename Request, typename Response>
  absl::StatusOr<Answers<Response>> AskEach(Method<Request, Response> method,
                                            const Request& request,
                                            bool unknown_is_none = false) const;
  // The same, where one at least must answer. Where unknown_is_none, NotFound if all that answer
  // say it.
  template <typename Request, typename Response>
  absl::StatusOr<Answers<Response>> AskAll(Method<Request, Response> method, const Request& request,
                                           bool unknown_is_none = false) const;

  absl::StatusOr<v1::FetchTopKHeader> MergeHeaders(
      const v1::FetchTopKRequest& request, const Parts& parts,
      const Answers<std::vector<FetchedMessage>>& answers);

  // The replicas that have a part of a request.
  template <typename Part>
  static std::vector<size_t> ReplicasOf(const std::map<size_t, Part>& parts) {
    std::vector<size_t> replicas;
    for (const auto& [replica, part] : parts) replicas.push_back(replica);
    return replicas;
  }

  const Placement placement_;
  // Shared with append streams, which may outlive the client.
  const std::vector<std::shared_ptr<SingleServer>> servers_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<uint64_t, Leases> leases_;
  uint64_t next_lease_id_;
};

template <typename Response>
absl::StatusOr<Replicas::Answers<Response>> Replicas::AskSome(const std::vector<size_t>& replicas,
                                                              const Ask<Response>& ask,
                                                              bool unknown_is_none) const {
  std::map<size_t, std::future<absl::StatusOr<Response>>> asked;
  for (const size_t replica : replicas) {
    asked.emplace(replica, std::async(std::launch::async, ask, replica));
  }
  Answers<Response> answers;
  absl::Status error;
  for (auto& [replica, answer] : asked) {
    absl::StatusOr<Response> response = answer.get();
    if (response.ok()) {
      answers.given.emplace(replica, *std::move(response));
    } else if (IsUnreachable(response.status())) {
      answers.down.emplace(replica, response.status());
    } else if (unknown_is_none && absl::IsNotFound(response.status())) {
      answers.unknown = response.status();
    } else {
      error.Update(response.status());
    }
  }
  if (!error.ok()) return error;
  if (answers.down.size() == servers_.size()) return answers.down.begin()->second;
  return answers;
}

}  // namespace sis
