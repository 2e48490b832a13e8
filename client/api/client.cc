#include "client/api/client.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/api/fetched_records.h"
#include "client/one_server/circuit_breaker.h"
#include "client/one_server/single_server.h"
#include "client/replicas/evaluate_batches.h"
#include "client/replicas/replicas.h"
#include "client/types/grpc_status.h"
#include "client/types/messages.h"

namespace sis {
namespace {

// Waits until one of the servers answers; the others are connected to on the way.
absl::Status WaitForOne(const std::vector<std::string>& addresses,
                        const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                        const ClientOptions& options) {
  const absl::Time end = absl::Now() + options.connect_timeout;
  const absl::Duration turn =
      channels.size() == 1 ? options.connect_timeout : absl::Milliseconds(20);
  for (const auto& channel : channels) channel->GetState(/*try_to_connect=*/true);
  do {
    for (const auto& channel : channels) {
      if (channel->WaitForConnected(absl::ToChronoTime(std::min(end, absl::Now() + turn)))) {
        return absl::OkStatus();
      }
    }
  } while (absl::Now() < end);
  return absl::UnavailableError(
      absl::StrCat("no server answered at ", absl::StrJoin(addresses, ", "), " within ",
                   absl::FormatDuration(options.connect_timeout),
                   options.credentials.has_tls() ? ", with" : ", without", " TLS"));
}

absl::StatusOr<TopKRecords> Receive(Replicas& replicas, const v1::FetchTopKRequest& request) {
  RecordReader reader(request);
  const absl::Status status = replicas.FetchTopK(
      request, [&](FetchedMessage message) { return reader.Add(std::move(message)); });
  if (!status.ok()) return status;
  return std::move(reader).Finish();
}

// A request about a run.
template <typename Request>
Request About(const RunRef& run) {
  Request request;
  ToMessage(run, *request.mutable_run());
  return request;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        const ClientOptions& options) {
  return Connect(std::vector<std::string>{address}, options);
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::vector<std::string>& addresses,
                                                        const ClientOptions& options) {
  const std::set<std::string> different(addresses.begin(), addresses.end());
  if (addresses.empty() || different.size() < addresses.size()) {
    return absl::InvalidArgumentError(absl::StrCat("addresses are ", absl::StrJoin(addresses, ", "),
                                                   ": must be at least one, each once"));
  }
  const bool one = addresses.size() == 1;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::shared_ptr<SingleServer>> servers;
  for (const std::string& address : addresses) {
    if (absl::Status status = options.credentials.CheckFor(address); !status.ok()) return status;
    channels.push_back(MakeChannel(address, options.credentials));
    servers.push_back(std::make_shared<SingleServer>(
        channels.back(), options.call_timeout, one ? nullptr : std::make_unique<CircuitBreaker>()));
  }
  if (absl::Status status = WaitForOne(addresses, channels, options); !status.ok()) return status;
  return absl::WrapUnique(new Client(
      std::make_unique<Replicas>(addresses, std::move(servers), options.micro_batch_bytes)));
}

Client::Client(std::unique_ptr<Replicas> replicas) : replicas_(std::move(replicas)) {}

Client::~Client() = default;

Client::Client(const std::shared_ptr<grpc::Channel>& channel, const ClientOptions& options)
    : Client(std::make_unique<Replicas>(std::vector<std::string>{""},
                                        std::vector{std::make_shared<SingleServer>(
                                            channel, options.call_timeout, /*breaker=*/nullptr)},
                                        options.micro_batch_bytes)) {}

absl::StatusOr<v1::CreateRunResponse> Client::CreateRun(const std::string& run_id,
                                                        const v1::RunConfig& config,
                                                        uint64_t incarnation) {
  v1::CreateRunRequest request;
  request.set_run_id(run_id);
  *request.mutable_config() = config;
  request.set_incarnation(incarnation);
  return replicas_->CreateRun(request);
}

absl::StatusOr<uint64_t> Client::AdvanceVersion(const RunRef& run, uint64_t policy_version) {
  auto request = About<v1::AdvanceVersionRequest>(run);
  request.set_policy_version(policy_version);
  const absl::StatusOr<v1::AdvanceVersionResponse> response = replicas_->AdvanceVersion(request);
  if (!response.ok()) return response.status();
  return response->dropped_sequences();
}

absl::StatusOr<v1::Run> Client::GetRun(const std::string& run_id) {
  v1::GetRunRequest request;
  request.set_run_id(run_id);
  const absl::StatusOr<v1::GetRunResponse> response = replicas_->GetRun(request);
  if (!response.ok()) return response.status();
  return response->run();
}

absl::StatusOr<v1::ListRunsResponse> Client::ListRuns() {
  return replicas_->Ask(&v1::RatioService::Stub::ListRuns, v1::ListRunsRequest());
}

absl::StatusOr<bool> Client::DeleteRun(const RunRef& run) {
  const absl::StatusOr<v1::DeleteRunResponse> response =
      replicas_->DeleteRun(About<v1::DeleteRunRequest>(run));
  if (!response.ok()) return response.status();
  return response->deleted();
}

absl::StatusOr<v1::GetStepResponse> Client::GetStep(const RunRef& run, uint64_t draw) {
  auto request = About<v1::GetStepRequest>(run);
  request.set_draw(draw);
  return replicas_->Ask(&v1::RatioService::Stub::GetStep, request);
}

absl::StatusOr<v1::ListStepsResponse> Client::ListSteps(const RunRef& run) {
  return replicas_->Ask(&v1::RatioService::Stub::ListSteps, About<v1::ListStepsRequest>(run));
}

absl::StatusOr<v1::GetHistoryResponse> Client::GetHistory(const RunRef& run) {
  return replicas_->Ask(&v1::RatioService::Stub::GetHistory, About<v1::GetHistoryRequest>(run));
}

absl::StatusOr<v1::ListSequencesResponse> Client::ListSequences(
    const RunRef& run, const std::optional<SequenceRef>& after) {
  auto request = About<v1::ListSequencesRequest>(run);
  if (after.has_value()) ToMessage(*after, *request.mutable_after());
  return replicas_->Ask(&v1::RatioService::Stub::ListSequences, request);
}

std::vector<absl::StatusOr<v1::GetServerResponse>> Client::GetServers() {
  return replicas_->GetServers();
}

absl::StatusOr<v1::InspectRunResponse> Client::InspectRun(const RunRef& run) {
  return replicas_->Ask(&v1::RatioService::Stub::InspectRun, About<v1::InspectRunRequest>(run));
}

absl::StatusOr<v1::InspectSequenceResponse> Client::InspectSequence(const RunRef& run,
                                                                    const SequenceRef& sequence) {
  auto request = About<v1::InspectSequenceRequest>(run);
  ToMessage(sequence, *request.mutable_sequence());
  return replicas_->InspectSequence(request);
}

std::unique_ptr<AppendWriter> Client::Append(const RunRef& run, const v1::Sampling& sampling,
                                             uint32_t vocabulary_size,
                                             const AppendOptions& options) {
  v1::AppendHeader header;
  ToMessage(run, *header.mutable_run());
  header.set_worker(options.worker);
  *header.mutable_sampling() = sampling;
  header.set_vocabulary_size(vocabulary_size);
  return replicas_->Append(header, options);
}

absl::StatusOr<v1::ReleaseResponse> Client::Release(const RunRef& run,
                                                    std::span<const SequenceRef> sequences,
                                                    std::span<const uint64_t> lease_ids) {
  auto request = About<v1::ReleaseRequest>(run);
  for (const SequenceRef& sequence : sequences) ToMessage(sequence, *request.add_sequences());
  request.mutable_lease_ids()->Add(lease_ids.begin(), lease_ids.end());
  return replicas_->Release(request);
}

absl::StatusOr<TopKRecords> Client::FetchTopK(const RunRef& run, std::span<const Slice> slices,
                                              const FetchOptions& options) {
  auto request = About<v1::FetchTopKRequest>(run);
  for (const Slice& slice : slices) ToMessage(slice, *request.add_slices());
  request.set_lease_seconds(absl::ToDoubleSeconds(options.lease));
  request.mutable_arrays()->Add(options.arrays.begin(), options.arrays.end());
  request.set_chunks_span_slices(true);
  request.set_ragged(options.ragged);
  return Receive(*replicas_, request);
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const EvaluateForm& current,
                                            const EvaluateOptions& options) {
  auto request = About<v1::EvaluateRequest>(run);
  for (const Slice& slice : slices) ToMessage(slice, *request.add_slices());
  if (absl::Status status = WriteOptions(options, request); !status.ok()) return status;
  std::vector<PositionArray> arrays = FormArrays(current);
  const SampledIdBytes sampled_ids = PackSampledIds(options);
  for (const PositionArray& array : OptionArrays(options, sampled_ids)) arrays.push_back(array);
  EvaluateBatches batches(std::move(request), std::move(arrays));
  return replicas_->Evaluate(batches, options.needs_one_request(slices));
}

}  // namespace sis
