#include "client/replicas/replicas.h"

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "client/replicas/batch_rows.h"
#include "client/replicas/merge_histories.h"
#include "client/replicas/merge_inspections.h"
#include "client/replicas/replicated_append_writer.h"
#include "client/replicas/store_down.h"
#include "client/types/messages.h"
#include "client/types/sum_totals.h"

namespace sis {
namespace {

// As many as a server lists where a request does not say.
constexpr int kSequencesOfAPage = 1000;

// Adds another replica's part of a run. One in an older incarnation holds nothing of it.
void Merge(const v1::Run& part, v1::Run& run) {
  if (part.incarnation() < run.incarnation()) return;
  if (part.incarnation() > run.incarnation()) {
    run = part;
    return;
  }
  run.set_policy_version(std::max(run.policy_version(), part.policy_version()));
  run.set_sequences(run.sequences() + part.sequences());
  run.set_sealed_sequences(run.sealed_sequences() + part.sealed_sequences());
  run.set_positions(run.positions() + part.positions());
  run.set_bytes(run.bytes() + part.bytes());
  run.set_leases(run.leases() + part.leases());
  run.set_unread_sequences(run.unread_sequences() + part.unread_sequences());
  run.set_verdict(std::max(run.verdict(), part.verdict()));
  auto& findings = *run.mutable_findings();
  for (const v1::Finding& finding : part.findings()) {
    // Of a rule that several are beyond, what the first says.
    const bool there = std::ranges::any_of(
        findings, [&](const v1::Finding& found) { return found.rule() == finding.rule(); });
    if (!there) *findings.Add() = finding;
  }
  std::ranges::stable_sort(findings, std::greater<>(), &v1::Finding::verdict);
  if (part.has_last_totals()) {
    const v1::Totals parts[] = {run.last_totals(), part.last_totals()};
    if (part.last_draw() == run.last_draw()) {
      *run.mutable_last_totals() = SumTotals(parts);
    } else if (part.last_draw() > run.last_draw()) {
      *run.mutable_last_totals() = part.last_totals();
    }
    run.set_last_evaluated_at(std::max(run.last_evaluated_at(), part.last_evaluated_at()));
  }
  if (part.has_last_draw()) run.set_last_draw(std::max(run.last_draw(), part.last_draw()));
}

// What the replicas count for one draw.
v1::GetStepResponse Merged(std::span<const v1::GetStepResponse> parts) {
  v1::GetStepResponse merged;
  std::vector<v1::Totals> totals;
  for (const v1::GetStepResponse& part : parts) {
    totals.push_back(part.totals());
    AddStep(part, merged);
  }
  *merged.mutable_totals() = SumTotals(totals);
  return merged;
}

// Says in a merged answer whose share is not in it.
template <typename Response>
void NoteUnanswered(const std::map<size_t, absl::Status>& down, Response& merged) {
  for (const auto& [replica, status] : down) {
    merged.add_unanswered(static_cast<uint32_t>(replica));
  }
}

}  // namespace

Replicas::Replicas(const std::vector<std::string>& names,
                   std::vector<std::shared_ptr<SingleServer>> servers)
    : placement_(names),
      servers_(std::move(servers)),
      // Not numbers that another process hands out too.
      next_lease_id_(absl::Uniform<uint64_t>(absl::BitGen(), 1, uint64_t{1} << 62)) {}

template <typename Request, typename Response>
absl::StatusOr<Replicas::Answers<Response>> Replicas::AskEach(Method<Request, Response> method,
                                                              const Request& request,
                                                              bool unknown_is_none) const {
  std::vector<size_t> replicas(servers_.size());
  std::iota(replicas.begin(), replicas.end(), 0);
  return AskSome<Response>(
      replicas, [&](size_t replica) { return ((*servers_[replica]).*method)(request); },
      unknown_is_none);
}

template <typename Request, typename Response>
absl::StatusOr<Replicas::Answers<Response>> Replicas::AskAll(Method<Request, Response> method,
                                                             const Request& request,
                                                             bool unknown_is_none) const {
  absl::StatusOr<Answers<Response>> answers = AskEach(method, request, unknown_is_none);
  if (answers.ok() && answers->given.empty()) return answers->unknown;
  return answers;
}

absl::StatusOr<v1::CreateRunResponse> Replicas::CreateRun(const v1::CreateRunRequest& request) {
  const auto answers = AskAll(&SingleServer::CreateRun, request);
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
  const auto answers = AskAll(&SingleServer::GetRun, request, /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  v1::GetRunResponse merged;
  for (const auto& [replica, answer] : answers->given) Merge(answer.run(), *merged.mutable_run());
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
    // Some know of no columns.
    if (answer.run().config().columns_size() != known.config().columns_size()) {
      merged.mutable_run()->mutable_config()->clear_columns();
    }
  }
  return merged;
}

absl::StatusOr<v1::DeleteRunResponse> Replicas::DeleteRun(const v1::DeleteRunRequest& request) {
  const auto answers = AskEach(&SingleServer::DeleteRun, request);
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

absl::StatusOr<v1::ListRunsResponse> Replicas::ListRuns(const v1::ListRunsRequest& request) {
  const auto answers = AskAll(&SingleServer::ListRuns, request);
  if (!answers.ok()) return answers.status();
  std::map<std::string, v1::Run> runs;
  for (const auto& [replica, answer] : answers->given) {
    for (const v1::Run& run : answer.runs()) Merge(run, runs[run.run_id()]);
  }
  v1::ListRunsResponse merged;
  for (auto& [run_id, run] : runs) {
    merged.set_worth_a_look(merged.worth_a_look() + (run.verdict() == v1::WORTH_A_LOOK));
    merged.set_broken(merged.broken() + (run.verdict() == v1::BROKEN));
    *merged.add_runs() = std::move(run);
  }
  merged.set_all_runs(merged.runs_size());
  merged.set_containing_runs(merged.runs_size());
  NoteUnanswered(answers->down, merged);
  return merged;
}

absl::StatusOr<v1::AdvanceVersionResponse> Replicas::AdvanceVersion(
    const v1::AdvanceVersionRequest& request) {
  const auto answers = AskAll(&SingleServer::AdvanceVersion, request);
  if (!answers.ok()) return answers.status();
  v1::AdvanceVersionResponse merged;
  for (const auto& [replica, answer] : answers->given) {
    merged.set_dropped_sequences(merged.dropped_sequences() + answer.dropped_sequences());
  }
  return merged;
}

absl::StatusOr<v1::GetStepResponse> Replicas::GetStep(const v1::GetStepRequest& request) {
  const auto answers = AskAll(&SingleServer::GetStep, request, /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  std::vector<v1::GetStepResponse> parts;
  for (const auto& [replica, answer] : answers->given) parts.push_back(answer);
  v1::GetStepResponse merged = Merged(parts);
  NoteUnanswered(answers->down, merged);
  return merged;
}

absl::StatusOr<v1::ListStepsResponse> Replicas::ListSteps(const v1::ListStepsRequest& request) {
  const auto answers = AskAll(&SingleServer::ListSteps, request, /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  struct Draw {
    uint64_t draw;
    int from_end;  // of the list of the replica that evaluated it last, as far as that can be told
    std::vector<v1::GetStepResponse> parts;
  };
  std::map<uint64_t, Draw> draws;
  for (const auto& [replica, answer] : answers->given) {
    for (int i = 0; i < answer.steps_size(); ++i) {
      const int from_end = answer.steps_size() - i;
      Draw& draw =
          draws.try_emplace(answer.steps(i).draw(), Draw{answer.steps(i).draw(), from_end, {}})
              .first->second;
      draw.from_end = std::min(draw.from_end, from_end);
      draw.parts.push_back(answer.steps(i).step());
    }
  }
  std::vector<Draw> in_order;
  for (auto& [number, draw] : draws) in_order.push_back(std::move(draw));
  std::ranges::stable_sort(in_order, std::greater(), &Draw::from_end);
  v1::ListStepsResponse merged;
  for (const Draw& draw : in_order) {
    v1::ListStepsResponse::Step& step = *merged.add_steps();
    step.set_draw(draw.draw);
    *step.mutable_step() = Merged(draw.parts);
    NoteUnanswered(answers->down, *step.mutable_step());
  }
  NoteUnanswered(answers->down, merged);
  return merged;
}

absl::StatusOr<v1::GetHistoryResponse> Replicas::GetHistory(const v1::GetHistoryRequest& request) {
  const auto answers = AskAll(&SingleServer::GetHistory, request, /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  std::vector<v1::GetHistoryResponse> parts;
  for (const auto& [replica, answer] : answers->given) parts.push_back(answer);
  v1::GetHistoryResponse merged = MergeHistories(std::move(parts));
  NoteUnanswered(answers->down, merged);
  return merged;
}

absl::StatusOr<v1::ListSequencesResponse> Replicas::ListSequences(
    const v1::ListSequencesRequest& request) {
  const auto answers = AskAll(&SingleServer::ListSequences, request, /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  std::map<std::pair<std::string, uint32_t>, v1::ListSequencesResponse::Sequence> by_name;
  v1::ListSequencesResponse merged;
  for (const auto& [replica, answer] : answers->given) {
    for (const auto& listed : answer.sequences()) {
      by_name.try_emplace({listed.sequence().id(), listed.sequence().attempt()}, listed);
    }
    merged.set_more(merged.more() || answer.more());
    merged.set_store_keeps_evicted(merged.store_keeps_evicted() || answer.store_keeps_evicted());
  }
  const int limit = request.limit() > 0 ? static_cast<int>(request.limit()) : kSequencesOfAPage;
  for (auto& [name, listed] : by_name) {
    if (merged.sequences_size() == limit) {
      merged.set_more(true);
      break;
    }
    *merged.add_sequences() = std::move(listed);
  }
  NoteUnanswered(answers->down, merged);
  return merged;
}

std::vector<absl::StatusOr<v1::GetServerResponse>> Replicas::GetServers() {
  std::vector<std::future<absl::StatusOr<v1::GetServerResponse>>> asked;
  for (const auto& server : servers_) {
    asked.push_back(std::async(std::launch::async, [&] { return server->GetServer(); }));
  }
  std::vector<absl::StatusOr<v1::GetServerResponse>> answers;
  for (auto& answer : asked) answers.push_back(answer.get());
  return answers;
}

absl::StatusOr<v1::InspectRunResponse> Replicas::InspectRun(const v1::InspectRunRequest& request) {
  const auto answers = AskAll(&SingleServer::InspectRun, request, /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  std::vector<v1::InspectRunResponse> parts;
  for (const auto& [replica, answer] : answers->given) parts.push_back(answer);
  v1::InspectRunResponse merged = MergeInspections(parts);
  NoteUnanswered(answers->down, merged);
  return merged;
}

absl::StatusOr<v1::InspectSequenceResponse> Replicas::InspectSequence(
    const v1::InspectSequenceRequest& request) {
  // Not the one that it is placed on: behind one name any server may have evaluated it last.
  const auto answers = AskEach(&SingleServer::InspectSequence, request, /*unknown_is_none=*/true);
  if (!answers.ok()) return answers.status();
  if (answers->given.empty()) {
    return answers->down.empty() ? answers->unknown : answers->down.begin()->second;
  }
  return std::ranges::max_element(answers->given, {},
                                  [](const auto& answer) { return answer.second.draw(); })
      ->second;
}

absl::StatusOr<v1::ReleaseResponse> Replicas::Release(const v1::ReleaseRequest& request) {
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
    return servers_[replica]->Release(parts.at(replica));
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
                                               const AppendOptions& options,
                                               std::shared_ptr<MappedSegments>) {
  return std::make_unique<ReplicatedAppendWriter>(
      [placement = placement_, run_id = header.run().run_id()](const std::string& sequence_id) {
        return placement.Replica(run_id, sequence_id);
      },
      servers_, header, options);
}

absl::StatusOr<v1::EvaluateResponse> Replicas::Evaluate(v1::EvaluateRequest request) {
  if (request.slices().empty()) return servers_[0]->Evaluate(std::move(request));
  if (request.algorithm().has_clip_cov() && servers_.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm.clip_cov: it chooses among all positions of a batch, which several "
                     "replicas share: there are ",
                     servers_.size(), ", must be one"));
  }
  Leases leases;
  if (request.lease_id() != 0) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = leases_.find(request.lease_id()); found != leases_.end()) {
        leases = found->second;
      }
    }
    const bool checked = std::ranges::all_of(
        request.slices(), [](const v1::Slice& slice) { return slice.has_record_digest(); });
    if (leases.empty() && !checked) {
      return absl::FailedPreconditionError(
          absl::StrCat("lease ", request.lease_id(), " is none of this client's"));
    }
  }

  // What each replica gets a part of; all that is left in the request is for every one.
  google::protobuf::RepeatedPtrField<v1::Slice> slices;
  slices.Swap(request.mutable_slices());
  v1::EvaluateRequest arrays;
  BatchRows::TakeArrays(request, arrays);
  request.clear_lease_id();

  Parts parts;
  for (int number = 0; number < slices.size(); ++number) {
    const v1::Slice& slice = slices[number];
    // What was not fetched has no values here, even if the records are there by now.
    if (slice.record_digest() == kStoreDownDigest) continue;
    parts[placement_.Replica(request.run().run_id(), slice.sequence().id())].push_back(number);
  }
  const BatchRows rows(slices);
  const auto answers = AskSome<v1::EvaluateResponse>(ReplicasOf(parts), [&](size_t replica) {
    const std::vector<int>& numbers = parts.at(replica);
    v1::EvaluateRequest part = request;
    for (const int number : numbers) *part.add_slices() = slices[number];
    if (const auto lease = leases.find(replica); lease != leases.end()) {
      part.set_lease_id(lease->second);
    }
    rows.Split(arrays, numbers, part);
    return servers_[replica]->Evaluate(std::move(part));
  });
  if (!answers.ok()) return answers.status();

  v1::EvaluateResponse merged;
  rows.SetMissing(request.outputs(), arrays.mask(), merged);
  std::vector<v1::MissingRange> missing;
  std::vector<v1::Totals> totals;
  std::vector<std::optional<v1::Totals>> slice_totals(slices.size());
  std::vector<v1::LogRatioSum> log_ratio_sums(request.algorithm().has_gspo() ? slices.size() : 0);
  // A sequence whose server is down has no ratio, and lies within.
  const int regions = request.trust_regions_size();
  if (regions > 0) {
    merged.mutable_divergences()->Resize(regions * slices.size(), 0.0);
    merged.mutable_outside_trust_regions()->Resize(slices.size(), false);
  }
  for (const auto& [replica, answer] : answers->given) {
    const std::vector<int>& numbers = parts.at(replica);
    if (static_cast<size_t>(answer.slice_totals_size()) != numbers.size()) {
      return absl::InternalError("the server's slice_totals do not fit the slices");
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      slice_totals[numbers[i]] = answer.slice_totals(static_cast<int>(i));
    }
    if (!log_ratio_sums.empty()) {
      if (static_cast<size_t>(answer.log_ratio_sums_size()) != numbers.size()) {
        return absl::InternalError("the server's log_ratio_sums do not fit the slices");
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        log_ratio_sums[numbers[i]] = answer.log_ratio_sums(static_cast<int>(i));
      }
    }
    const int answered = static_cast<int>(numbers.size());
    if (regions > 0 && (answer.divergences_size() != regions * answered ||
                        answer.outside_trust_regions_size() != answered)) {
      return absl::InternalError(
          "the server's divergences do not fit the slices (a server older than trust_regions?)");
    }
    for (int i = 0; regions > 0 && i < answered; ++i) {
      merged.set_outside_trust_regions(numbers[i], answer.outside_trust_regions(i));
      for (int j = 0; j < regions; ++j) {
        merged.set_divergences(numbers[i] * regions + j, answer.divergences(i * regions + j));
      }
    }
    if (absl::Status status = AddRenumbered(answer.missing(), numbers, missing); !status.ok()) {
      return status;
    }
    totals.push_back(answer.totals());
    AddPrefixCurve(answer.prefix_curve(), *merged.mutable_prefix_curve());
    AddCorrections(answer.corrections(), *merged.mutable_corrections());
    merged.set_newly_counted(merged.newly_counted() + answer.newly_counted());
    if (absl::Status status = rows.MergeOutputs(answer, numbers, merged); !status.ok()) {
      return status;
    }
  }
  for (int number = 0; number < slices.size(); ++number) {
    std::optional<v1::Totals>& of_slice = slice_totals[number];
    if (!of_slice.has_value()) {
      const v1::Slice& slice = slices[number];
      const bool needs_ratios = std::ranges::any_of(request.outputs(), [](int output) {
        return output == v1::RATIOS || output == v1::LOG_RATIOS || output == v1::SURROGATES ||
               output == v1::COEFFICIENTS;
      });
      if (needs_ratios || request.has_algorithm()) {
        return absl::FailedPreconditionError(
            absl::StrCat("ratios of missing positions: sequence '", slice.sequence().id(),
                         "' attempt ", slice.sequence().attempt(), " position ",
                         slice.first_position(), " is missing (store_down)"));
      }
      of_slice = rows.MissingTotals(arrays.mask(), number);
      totals.push_back(*of_slice);
      missing.push_back(StoreDown(number, slice));
    }
    *merged.add_slice_totals() = *std::move(of_slice);
  }
  merged.mutable_log_ratio_sums()->Assign(log_ratio_sums.begin(), log_ratio_sums.end());
  *merged.mutable_totals() = SumTotals(totals);
  AddInOrder(std::move(missing), *merged.mutable_missing());
  return merged;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> Replicas::LeaseSharedMemory(
    uint64_t, std::shared_ptr<MappedSegments>) {
  return absl::UnimplementedError("shared memory: only with a single server");
}

}  // namespace sis
