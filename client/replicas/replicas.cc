#include "client/replicas/replicas.h"

#include <algorithm>
#include <optional>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "client/replicas/replicated_append_writer.h"
#include "client/replicas/store_down.h"

namespace sis {

Replicas::Replicas(const std::vector<std::string>& names,
                   std::vector<std::shared_ptr<SingleServer>> servers, size_t batch_bytes)
    : placement_(names),
      servers_(std::move(servers)),
      batch_bytes_(batch_bytes),
      // Not numbers that another process hands out too.
      next_lease_id_(absl::Uniform<uint64_t>(absl::BitGen(), 1, uint64_t{1} << 62)) {}

absl::StatusOr<v1::CreateRunResponse> Replicas::CreateRun(const v1::CreateRunRequest& request) {
  const auto answers = AskAll<v1::CreateRunResponse>(
      [&](size_t replica) { return servers_[replica]->CreateRun(request); });
  if (!answers.ok()) return answers.status();
  v1::CreateRunResponse merged;
  merged.set_created(true);
  for (const auto& [replica, answer] : answers->given) {
    merged.set_incarnation(std::max(merged.incarnation(), answer.incarnation()));
    merged.set_created(merged.created() && answer.created());
  }
  v1::CreateRunRequest agreed = request;
  agreed.set_incarnation(merged.incarnation());
  std::vector<size_t> behind;
  for (const auto& [replica, answer] : answers->given) {
    if (answer.incarnation() < merged.incarnation()) behind.push_back(replica);
  }
  for (const auto& server : servers_) server->Remember(agreed);
  const auto opened = AskSome<v1::CreateRunResponse>(
      behind, [&](size_t replica) { return servers_[replica]->CreateRun(agreed); });
  if (!opened.ok()) return opened.status();
  return merged;
}

absl::StatusOr<v1::GetRunResponse> Replicas::GetRun(const v1::GetRunRequest& request) {
  const auto answers =
      AskAll<v1::GetRunResponse>([&](size_t replica) { return servers_[replica]->GetRun(request); },
                                 /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  v1::GetRunResponse merged;
  for (const auto& [replica, answer] : answers->given) AddRun(answer.run(), *merged.mutable_run());
  merged.mutable_run()->set_run_id(request.run_id());
  v1::CreateRunRequest known;
  known.set_run_id(request.run_id());
  *known.mutable_config() = merged.run().config();
  known.set_incarnation(merged.run().incarnation());
  for (const auto& server : servers_) server->Remember(known, merged.run().policy_version());
  for (const auto& [replica, answer] : answers->given) {
    // Some know of no mass, and must be sent whole sets.
    if (answer.run().config().mass() != known.config().mass()) {
      merged.mutable_run()->mutable_config()->clear_mass();
    }
  }
  return merged;
}

absl::StatusOr<v1::DeleteRunResponse> Replicas::DeleteRun(const v1::DeleteRunRequest& request) {
  const auto answers = AskAll<v1::DeleteRunResponse>(
      [&](size_t replica) { return servers_[replica]->DeleteRun(request); });
  if (!answers.ok()) return answers.status();
  if (!answers->down.empty()) {
    const absl::Status& status = answers->down.begin()->second;
    return absl::Status(
        status.code(), absl::StrCat("run '", request.run().run_id(),
                                    "': deleted, but perhaps not on ", answers->down.size(), " of ",
                                    servers_.size(), " replicas: ", status.message()));
  }
  v1::DeleteRunResponse merged;
  for (const auto& [replica, answer] : answers->given) {
    merged.set_deleted(merged.deleted() || answer.deleted());
  }
  return merged;
}

absl::StatusOr<v1::AdvanceVersionResponse> Replicas::AdvanceVersion(
    const v1::AdvanceVersionRequest& request) {
  const auto answers = AskAll<v1::AdvanceVersionResponse>(
      [&](size_t replica) { return servers_[replica]->AdvanceVersion(request); });
  if (!answers.ok()) return answers.status();
  v1::AdvanceVersionResponse merged;
  for (const auto& [replica, answer] : answers->given) {
    merged.set_dropped_sequences(merged.dropped_sequences() + answer.dropped_sequences());
  }
  return merged;
}

absl::StatusOr<v1::InspectSequenceResponse> Replicas::InspectSequence(
    const v1::InspectSequenceRequest& request) {
  // Of all: one may have evaluated it under another list of replicas.
  const auto answers = AskSome<v1::InspectSequenceResponse>(
      All(),
      [&](size_t replica) {
        return servers_[replica]->Ask(&v1::RatioService::Stub::InspectSequence, request);
      },
      /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  if (answers->given.empty()) {
    return answers->down.empty() ? answers->unknown : answers->down.begin()->second;
  }
  return std::ranges::max_element(answers->given, {},
                                  [](const auto& answer) { return answer.second.draw(); })
      ->second;
}

std::vector<absl::StatusOr<v1::GetServerResponse>> Replicas::GetServers() {
  std::vector<std::future<absl::StatusOr<v1::GetServerResponse>>> asked;
  for (const auto& server : servers_) {
    asked.push_back(std::async(std::launch::async, [&] {
      return server->Ask(&v1::RatioService::Stub::GetServer, v1::GetServerRequest());
    }));
  }
  std::vector<absl::StatusOr<v1::GetServerResponse>> answers;
  for (auto& answer : asked) answers.push_back(answer.get());
  return answers;
}

absl::StatusOr<v1::ReleaseResponse> Replicas::Release(const v1::ReleaseRequest& request) {
  if (servers_.size() == 1) return servers_[0]->Ask(&v1::RatioService::Stub::Release, request);
  std::map<size_t, v1::ReleaseRequest> parts;
  for (const v1::SequenceRef& sequence : request.sequences()) {
    *parts[placement_.Replica(request.run().run_id(), sequence.id())].add_sequences() = sequence;
  }
  uint64_t known_leases = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const uint64_t lease_id : request.lease_ids()) {
      const auto leases = leases_.extract(lease_id);
      if (leases.empty()) continue;
      ++known_leases;
      for (const auto& [replica, lease] : leases.mapped()) parts[replica].add_lease_ids(lease);
    }
  }
  for (auto& [replica, part] : parts) *part.mutable_run() = request.run();
  const auto answers = AskSome<v1::ReleaseResponse>(ReplicasOf(parts), [&](size_t replica) {
    return servers_[replica]->Ask(&v1::RatioService::Stub::Release, parts.at(replica));
  });
  if (!answers.ok()) return answers.status();
  uint64_t sequences = 0;
  uint64_t leases = 0;
  for (const auto& [replica, answer] : answers->given) {
    sequences += answer.released_sequences();
    leases += answer.released_leases();
  }
  // One that stands for several is released with any of them.
  leases = std::min(leases, known_leases);
  v1::ReleaseResponse merged;
  merged.set_released_sequences(sequences);
  merged.set_released_leases(leases);
  merged.set_unknown(request.sequences_size() + request.lease_ids_size() - sequences - leases);
  return merged;
}

std::unique_ptr<AppendWriter> Replicas::Append(const v1::AppendHeader& header,
                                               const AppendOptions& options) {
  if (servers_.size() == 1) return servers_[0]->OpenStream(header, options);
  return std::make_unique<ReplicatedAppendWriter>(placement_, servers_, header, options);
}

absl::StatusOr<Replicas::Leases> Replicas::LeasesOf(const EvaluateBatches& batches) {
  const uint64_t lease_id = batches.request().lease_id();
  if (servers_.size() == 1) return Leases{{0, lease_id}};
  if (lease_id == 0) return Leases();
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = leases_.find(lease_id); found != leases_.end()) return found->second;
  }
  const bool checked = std::ranges::all_of(batches.slices(), [](const v1::Slice& slice) {
    return slice.length() == 0 || slice.has_record_digest();
  });
  if (checked) return Leases();
  return absl::FailedPreconditionError(
      absl::StrCat("lease ", lease_id, " is none of this client's"));
}

absl::StatusOr<Evaluation> Replicas::Evaluate(EvaluateBatches& batches, bool whole) {
  const v1::EvaluateRequest& request = batches.request();
  if (request.algorithm().has_clip_cov() && servers_.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm.clip_cov: it chooses among all positions of a batch, which several "
                     "replicas share: there are ",
                     servers_.size(), ", must be one"));
  }
  const absl::StatusOr<Leases> leases = LeasesOf(batches);
  if (!leases.ok()) return leases.status();

  Parts parts;
  // Whoever answers refuses arrays that do not fit, and a batch of nothing.
  const bool refused = !batches.fit() || batches.slices().empty();
  for (size_t replica = 0; refused && replica < servers_.size(); ++replica) parts[replica];
  for (int i = 0; i < batches.slices().size(); ++i) {
    const v1::Slice& slice = batches.slices()[i];
    // Of a lost sequence nothing can be decided.
    if (slice.length() == 0) continue;
    if (refused) {
      for (auto& [replica, slices] : parts) slices.push_back(static_cast<size_t>(i));
    } else if (slice.record_digest() != kStoreDownDigest) {
      // What was not fetched has no values here, even if the records are there by now.
      parts[placement_.Replica(request.run().run_id(), slice.sequence().id())].push_back(
          static_cast<size_t>(i));
    }
  }
  std::map<size_t, std::vector<size_t>> numbers;  // of the batches for each replica
  for (const auto& [replica, slices] : parts) {
    const auto lease = leases->find(replica);
    numbers[replica] = batches.Cut(slices, whole ? SIZE_MAX : batch_bytes_,
                                   lease == leases->end() ? 0 : lease->second);
  }
  std::vector<std::optional<v1::EvaluateResponse>> answers(batches.size());
  const auto send = [&](size_t replica) -> absl::StatusOr<bool> {
    for (const size_t i : numbers.at(replica)) {
      absl::StatusOr<v1::EvaluateResponse> answer = servers_[replica]->Evaluate(batches.Message(i));
      if (!answer.ok()) return answer.status();
      answers[i] = *std::move(answer);
    }
    return true;
  };
  const auto sent = AskSome<bool>(ReplicasOf(numbers), send);
  if (!sent.ok()) return sent.status();
  return batches.Merge(answers);
}

}  // namespace sis
