// Several servers as one: sequences placed by docs/placement.md, batches split and merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/one_server/append_writer.h"
#include "client/one_server/single_server.h"
#include "client/replicas/evaluate_batches.h"
#include "client/replicas/merged.h"
#include "client/replicas/placement.h"
#include "client/types/grpc_status.h"
#include "client/types/types.h"

namespace sis {

// A replica that gives no answer is passed over, and its sequences are MISSING (STORE_DOWN); for a
// while it is not asked again. If every one is needed and none answers, the call fails, as it does
// with a single one. Any other error of a replica is an error of the call. Thread-safe.
class Replicas {
 public:
  // As many names as servers, at least one, each once. `streams`: of a single server, for batches
  // of an Evaluate that is cut into several; may be null. A batch has about so many bytes.
  Replicas(const std::vector<std::string>& names,
           std::vector<std::shared_ptr<SingleServer>> servers, size_t batch_bytes);

  // Where a replica may know nothing of the run: what the others say of it, or NotFound if none
  // knows it. ListRuns, GetStep, ListSteps, GetHistory, ListSequences and InspectRun.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(SingleServer::Method<Request, Response> method,
                               const Request& request);
  absl::StatusOr<v1::CreateRunResponse> CreateRun(const v1::CreateRunRequest& request);
  absl::StatusOr<v1::GetRunResponse> GetRun(const v1::GetRunRequest& request);
  // All must answer.
  absl::StatusOr<v1::DeleteRunResponse> DeleteRun(const v1::DeleteRunRequest& request);
  absl::StatusOr<v1::AdvanceVersionResponse> AdvanceVersion(
      const v1::AdvanceVersionRequest& request);
  // Of each server, in the order in which they were named.
  std::vector<absl::StatusOr<v1::GetServerResponse>> GetServers();
  absl::StatusOr<v1::InspectSequenceResponse> InspectSequence(
      const v1::InspectSequenceRequest& request);
  absl::StatusOr<v1::ReleaseResponse> Release(const v1::ReleaseRequest& request);
  // Cuts the batches. `whole`: only where servers share them.
  absl::StatusOr<Evaluation> Evaluate(EvaluateBatches& batches, bool whole);
  // Hands on what comes, in order. An error of `receive` ends the call, and is returned.
  absl::Status FetchTopK(const v1::FetchTopKRequest& request, SingleServer::Receive receive);
  std::unique_ptr<AppendWriter> Append(const v1::AppendHeader& header,
                                       const AppendOptions& options);

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
  using Parts = std::map<size_t, std::vector<size_t>>;
  // What stands behind a lease that was handed out: the lease of each replica.
  using Leases = std::map<size_t, uint64_t>;

  template <typename Response>
  using Question = std::function<absl::StatusOr<Response>(size_t replica)>;
  // Asks these replicas at once.
  template <typename Response>
  absl::StatusOr<Answers<Response>> AskSome(const std::vector<size_t>& replicas,
                                            const Question<Response>& ask,
                                            bool unknown_is_none = false) const;
  // Asks all of them; one at least must answer. Where unknown_is_none, NotFound if all that answer
  // say it.
  template <typename Response>
  absl::StatusOr<Answers<Response>> AskAll(const Question<Response>& ask,
                                           bool unknown_is_none = false) const;
  // What stands behind the lease; FailedPrecondition if it is unknown here and not all slices have
  // digests.
  absl::StatusOr<Leases> LeasesOf(const EvaluateBatches& batches);
  absl::StatusOr<v1::FetchTopKHeader> MergeHeaders(
      const v1::FetchTopKRequest& request, const Parts& parts,
      const Answers<std::vector<FetchedMessage>>& answers);

  std::vector<size_t> All() const {
    std::vector<size_t> replicas(servers_.size());
    std::iota(replicas.begin(), replicas.end(), size_t{0});
    return replicas;
  }
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
  const size_t batch_bytes_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<uint64_t, Leases> leases_;
  uint64_t next_lease_id_;
};

template <typename Response>
absl::StatusOr<Replicas::Answers<Response>> Replicas::AskSome(const std::vector<size_t>& replicas,
                                                              const Question<Response>& ask,
                                                              bool unknown_is_none) const {
  // One alone is asked on this thread.
  const std::launch how = replicas.size() == 1 ? std::launch::deferred : std::launch::async;
  std::map<size_t, std::future<absl::StatusOr<Response>>> asked;
  for (const size_t replica : replicas) asked.emplace(replica, std::async(how, ask, replica));
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

template <typename Response>
absl::StatusOr<Replicas::Answers<Response>> Replicas::AskAll(const Question<Response>& ask,
                                                             bool unknown_is_none) const {
  absl::StatusOr<Answers<Response>> answers = AskSome(All(), ask, unknown_is_none);
  if (answers.ok() && answers->given.empty()) return answers->unknown;
  return answers;
}

template <typename Request, typename Response>
absl::StatusOr<Response> Replicas::Ask(SingleServer::Method<Request, Response> method,
                                       const Request& request) {
  absl::StatusOr<Answers<Response>> answers =
      AskAll<Response>([&](size_t replica) { return servers_[replica]->Ask(method, request); },
                       /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  std::vector<Response> parts;
  for (auto& [replica, answer] : answers->given) parts.push_back(std::move(answer));
  Response merged = parts.size() == 1 ? std::move(parts[0]) : Merged(parts);
  for (const auto& [replica, status] : answers->down) {
    merged.add_unanswered(static_cast<uint32_t>(replica));
  }
  if constexpr (std::is_same_v<Response, v1::ListStepsResponse>) {
    for (v1::ListStepsResponse::Step& step : *merged.mutable_steps()) {
      *step.mutable_step()->mutable_unanswered() = merged.unanswered();
    }
  }
  return merged;
}

}  // namespace sis
