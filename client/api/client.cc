#include "client/api/client.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/api/fetched_records.h"
#include "client/one_server/channel.h"
#include "client/one_server/circuit_breaker.h"
#include "client/one_server/single_server.h"
#include "client/replicas/replicas.h"
#include "client/types/grpc_status.h"
#include "client/types/messages.h"
#include "kernels/numerics/float16.h"

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
  return absl::UnavailableError(absl::StrCat("no server answered at ",
                                             absl::StrJoin(addresses, ", "), " within ",
                                             absl::FormatDuration(options.connect_timeout)));
}

absl::StatusOr<TopKRecords> Receive(Service& service, const v1::FetchTopKRequest& request,
                                    std::shared_ptr<SegmentAllocation> range = nullptr) {
  RecordReader reader(request, std::move(range));
  const absl::Status status = service.FetchTopK(
      request, [&](FetchedMessage message) { return reader.Add(std::move(message)); });
  if (!status.ok()) return status;
  return std::move(reader).Finish();
}

constexpr int kGathered = v1::EvaluateRequest::kGatheredFieldNumber;
constexpr int kReduced = v1::EvaluateRequest::kReducedFieldNumber;

// A form's array with one element per position.
template <typename T>
PositionArray Column(int form, int field, std::span<const T> values) {
  return {form, field, std::as_bytes(values), sizeof(T)};
}

// One with several elements per position.
template <typename T>
PositionArray SlotRows(int form, int field, std::span<const T> values, size_t positions) {
  return {form, field, std::as_bytes(values),
          values.size() / std::max<size_t>(1, positions) * sizeof(T)};
}

// Those of a form with values at the recorded slots: of used ones alone, if there are counts.
template <typename T>
std::vector<PositionArray> AtSlots(std::span<const T> values, std::span<const uint16_t> counts,
                                   size_t positions) {
  using Form = v1::Gathered;
  if (counts.empty()) {
    return {SlotRows(kGathered, Form::kLogProbsFieldNumber, values, positions)};
  }
  std::vector<size_t> begins = {0};
  begins.reserve(counts.size() + 1);
  for (const uint16_t count : counts) begins.push_back(begins.back() + count * sizeof(T));
  return {{kGathered, Form::kLogProbsFieldNumber, std::as_bytes(values), 0, std::move(begins)},
          Column(kGathered, Form::kTopKCountsFieldNumber, counts)};
}

// Takes the slices out of which nothing can be decided, and returns the numbers of the others.
std::vector<size_t> LeaveOutEmptySlices(v1::EvaluateRequest& request) {
  google::protobuf::RepeatedPtrField<v1::Slice> all;
  all.Swap(request.mutable_slices());
  std::vector<size_t> kept;
  for (int i = 0; i < all.size(); ++i) {
    if (all[i].length() == 0) continue;
    kept.push_back(static_cast<size_t>(i));
    *request.add_slices() = std::move(all[i]);
  }
  return kept;
}

// What was decided of the slices with these numbers, as of all `slices`: the others are empty.
void AddEmptySlices(const std::vector<size_t>& numbers, size_t slices, size_t regions,
                    Evaluation& evaluation) {
  if (numbers.size() == slices) return;
  for (v1::MissingRange& range : evaluation.missing) {
    if (range.slice() < numbers.size()) {
      range.set_slice(static_cast<uint32_t>(numbers[range.slice()]));
    }
  }
  const auto spread = [&](auto& of_slices) {
    std::decay_t<decltype(of_slices)> all(slices);
    for (size_t i = 0; i < std::min(numbers.size(), of_slices.size()); ++i) {
      all[numbers[i]] = std::move(of_slices[i]);
    }
    of_slices = std::move(all);
  };
  spread(evaluation.slice_totals);
  if (!evaluation.log_ratio_sums.empty()) spread(evaluation.log_ratio_sums);
  if (regions == 0) return;
  spread(evaluation.divergences);
  for (std::vector<double>& of_slice : evaluation.divergences) of_slice.resize(regions);
  spread(evaluation.outside_trust_regions);
}

// Of what goes to each of `servers` at once, where nothing is under way meanwhile.
size_t BytesWithoutStreams(const ClientOptions& options, size_t servers) {
  constexpr size_t kFactor = 4;
  const bool fits = options.micro_batch_bytes < SIZE_MAX / kFactor / servers;
  return fits ? options.micro_batch_bytes * kFactor * servers : SIZE_MAX;
}

// What is decided of no positions at all.
Evaluation NothingDecided(const EvaluateOptions& options, size_t slices) {
  Evaluation evaluation;
  evaluation.slice_totals.resize(slices);
  for (const uint32_t top_k : options.prefix_curve) {
    evaluation.prefix_curve.emplace_back().set_top_k(top_k);
  }
  if (options.algorithm && options.algorithm->has_gspo()) evaluation.log_ratio_sums.resize(slices);
  if (const size_t regions = options.trust_regions.size(); regions > 0) {
    evaluation.divergences.assign(slices, std::vector<double>(regions));
    evaluation.outside_trust_regions.resize(slices);
  }
  return evaluation;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        const ClientOptions& options) {
  if (absl::Status status = options.credentials.CheckFor(address); !status.ok()) return status;
  const std::shared_ptr<grpc::Channel> channel =
      MakeChannel(address, options.credentials, options.traceparent);
  if (absl::Status status = WaitForOne({address}, {channel}, options); !status.ok()) return status;
  return absl::WrapUnique(new Client(
      std::make_unique<SingleServer>(channel, options.call_timeout),
      std::make_unique<EvaluateStreams>(address, options.credentials, options.traceparent),
      options.micro_batch_bytes, options));
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::vector<std::string>& addresses,
                                                        const ClientOptions& options) {
  const std::set<std::string> different(addresses.begin(), addresses.end());
  if (addresses.empty() || different.size() < addresses.size()) {
    return absl::InvalidArgumentError(absl::StrCat("addresses are ", absl::StrJoin(addresses, ", "),
                                                   ": must be at least one, each once"));
  }
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::shared_ptr<SingleServer>> servers;
  for (const std::string& address : addresses) {
    if (absl::Status status = options.credentials.CheckFor(address); !status.ok()) return status;
    channels.push_back(MakeChannel(address, options.credentials, options.traceparent));
    servers.push_back(std::make_shared<SingleServer>(channels.back(), options.call_timeout,
                                                     std::make_unique<CircuitBreaker>()));
  }
  if (absl::Status status = WaitForOne(addresses, channels, options); !status.ok()) return status;
  return absl::WrapUnique(new Client(std::make_unique<Replicas>(addresses, std::move(servers)),
                                     /*streams=*/nullptr,
                                     BytesWithoutStreams(options, addresses.size()), options));
}

Client::Client(const std::shared_ptr<grpc::Channel>& channel, const ClientOptions& options)
    : Client(std::make_unique<SingleServer>(channel, options.call_timeout), /*streams=*/nullptr,
             BytesWithoutStreams(options, 1), options) {}

Client::Client(std::unique_ptr<Service> service, std::unique_ptr<EvaluateStreams> streams,
               size_t batch_bytes, const ClientOptions& options)
    : service_(std::move(service)),
      streams_(std::move(streams)),
      batch_bytes_(batch_bytes),
      options_(options) {}

absl::StatusOr<v1::CreateRunResponse> Client::CreateRun(const std::string& run_id,
                                                        const v1::RunConfig& config,
                                                        uint64_t incarnation) {
  v1::CreateRunRequest request;
  request.set_run_id(run_id);
  *request.mutable_config() = config;
  request.set_incarnation(incarnation);
  absl::StatusOr<v1::CreateRunResponse> created = service_->CreateRun(request);
  if (!created.ok() || config.columns().empty()) return created;
  const absl::StatusOr<v1::Run> run = GetRun(run_id);
  if (!run.ok()) return run.status();
  if (run->config().columns_size() == config.columns_size()) return created;
  return absl::UnimplementedError(
      absl::StrCat("the server of run '", run_id, "' knows no columns: upgrade it first"));
}

absl::StatusOr<uint64_t> Client::AdvanceVersion(const RunRef& run, uint64_t policy_version) {
  v1::AdvanceVersionRequest request;
  ToMessage(run, *request.mutable_run());
  request.set_policy_version(policy_version);
  const absl::StatusOr<v1::AdvanceVersionResponse> response = service_->AdvanceVersion(request);
  if (!response.ok()) return response.status();
  return response->dropped_sequences();
}

absl::StatusOr<v1::Run> Client::GetRun(const std::string& run_id) {
  v1::GetRunRequest request;
  request.set_run_id(run_id);
  const absl::StatusOr<v1::GetRunResponse> response = service_->GetRun(request);
  if (!response.ok()) return response.status();
  return response->run();
}

absl::StatusOr<v1::ListRunsResponse> Client::ListRuns() {
  return service_->ListRuns(v1::ListRunsRequest());
}

absl::StatusOr<bool> Client::DeleteRun(const RunRef& run) {
  v1::DeleteRunRequest request;
  ToMessage(run, *request.mutable_run());
  const absl::StatusOr<v1::DeleteRunResponse> response = service_->DeleteRun(request);
  if (!response.ok()) return response.status();
  return response->deleted();
}

absl::StatusOr<v1::GetStepResponse> Client::GetStep(const RunRef& run, uint64_t draw) {
  v1::GetStepRequest request;
  ToMessage(run, *request.mutable_run());
  request.set_draw(draw);
  return service_->GetStep(request);
}

absl::StatusOr<v1::ListStepsResponse> Client::ListSteps(const RunRef& run) {
  v1::ListStepsRequest request;
  ToMessage(run, *request.mutable_run());
  return service_->ListSteps(request);
}

absl::StatusOr<v1::GetHistoryResponse> Client::GetHistory(const RunRef& run) {
  v1::GetHistoryRequest request;
  ToMessage(run, *request.mutable_run());
  return service_->GetHistory(request);
}

absl::StatusOr<v1::ListSequencesResponse> Client::ListSequences(
    const RunRef& run, const std::optional<SequenceRef>& after) {
  v1::ListSequencesRequest request;
  ToMessage(run, *request.mutable_run());
  if (after.has_value()) ToMessage(*after, *request.mutable_after());
  return service_->ListSequences(request);
}

std::vector<absl::StatusOr<v1::GetServerResponse>> Client::GetServers() {
  return service_->GetServers();
}

absl::StatusOr<v1::InspectRunResponse> Client::InspectRun(const RunRef& run) {
  v1::InspectRunRequest request;
  ToMessage(run, *request.mutable_run());
  return service_->InspectRun(request);
}

absl::StatusOr<v1::InspectSequenceResponse> Client::InspectSequence(const RunRef& run,
                                                                    const SequenceRef& sequence) {
  v1::InspectSequenceRequest request;
  ToMessage(run, *request.mutable_run());
  ToMessage(sequence, *request.mutable_sequence());
  return service_->InspectSequence(request);
}

std::unique_ptr<AppendWriter> Client::Append(const RunRef& run, const v1::Sampling& sampling,
                                             uint32_t vocabulary_size,
                                             const AppendOptions& options) {
  v1::AppendHeader header;
  ToMessage(run, *header.mutable_run());
  header.set_worker(options.worker);
  *header.mutable_sampling() = sampling;
  header.set_vocabulary_size(vocabulary_size);
  return service_->Append(header, options, segments_);
}

absl::StatusOr<v1::ReleaseResponse> Client::Release(const RunRef& run,
                                                    std::span<const SequenceRef> sequences,
                                                    std::span<const uint64_t> lease_ids) {
  v1::ReleaseRequest request;
  ToMessage(run, *request.mutable_run());
  for (const SequenceRef& sequence : sequences) ToMessage(sequence, *request.add_sequences());
  request.mutable_lease_ids()->Add(lease_ids.begin(), lease_ids.end());
  return service_->Release(request);
}

absl::StatusOr<TopKRecords> Client::FetchTopK(const RunRef& run, std::span<const Slice> slices,
                                              const FetchOptions& options) {
  v1::FetchTopKRequest request;
  ToMessage(run, *request.mutable_run());
  for (const Slice& slice : slices) ToMessage(slice, *request.add_slices());
  request.set_lease_seconds(absl::ToDoubleSeconds(options.lease));
  request.mutable_arrays()->Add(options.arrays.begin(), options.arrays.end());
  request.set_chunks_span_slices(true);
  request.mutable_columns()->Add(options.columns.begin(), options.columns.end());
  if (options.memory != nullptr && !options.columns.empty()) {
    return absl::UnimplementedError("FetchTopK of columns into shared memory");
  }
  request.set_ragged(options.ragged);
  if (options.memory != nullptr) return FetchInto(*options.memory, std::move(request));
  return Receive(*service_, request);
}

absl::StatusOr<TopKRecords> Client::FetchInto(SharedMemory& memory, v1::FetchTopKRequest request) {
  const std::shared_ptr<SegmentAllocation> range = memory.memory().TakeLargest();
  if (range == nullptr) return absl::ResourceExhaustedError("nothing of the shared memory is free");
  request.set_segment(memory.segment());
  request.mutable_answers()->set_offset(range->offset());
  request.mutable_answers()->set_bytes(range->bytes().size());
  absl::StatusOr<TopKRecords> records = Receive(*service_, request, range);
  // A server that refuses the call does so before it writes anything.
  if (IsUnreachable(records.status()) || absl::IsInternal(records.status())) range->Abandon();
  return records;
}

absl::StatusOr<std::unique_ptr<SharedMemory>> Client::LeaseSharedMemory(size_t bytes) {
  return service_->LeaseSharedMemory(bytes, segments_);
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const GatheredValues& current,
                                            const EvaluateOptions& options) {
  if (current.half_precision) {
    std::vector<uint16_t> halves(current.log_probs.size());
    std::ranges::transform(current.log_probs, halves.begin(), Float16RoundedUp);
    return Evaluate(run, slices,
                    GatheredHalves{halves, current.sampled_log_probs, current.top_k_counts},
                    options);
  }
  std::vector<PositionArray> arrays =
      AtSlots(current.log_probs, current.top_k_counts, current.sampled_log_probs.size());
  arrays.push_back(
      Column(kGathered, v1::Gathered::kSampledLogProbsFieldNumber, current.sampled_log_probs));
  return Evaluate(run, slices, options, {}, std::move(arrays));
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const GatheredHalves& current,
                                            const EvaluateOptions& options) {
  v1::EvaluateRequest request;
  request.mutable_gathered()->set_values(v1::Gathered::FLOAT16_LOG_PROBS);
  std::vector<PositionArray> arrays =
      AtSlots(current.log_probs, current.top_k_counts, current.sampled_log_probs.size());
  arrays.push_back(
      Column(kGathered, v1::Gathered::kSampledLogProbsFieldNumber, current.sampled_log_probs));
  return Evaluate(run, slices, options, std::move(request), std::move(arrays));
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const ReducedValues& current,
                                            const EvaluateOptions& options) {
  return Evaluate(
      run, slices, options, {},
      {Column(kReduced, v1::Reduced::kSampledLogProbsFieldNumber, current.sampled_log_probs),
       Column(kReduced, v1::Reduced::kLogEnvelopesFieldNumber, current.log_envelopes),
       Column(kReduced, v1::Reduced::kCoveredMassesFieldNumber, current.covered_masses)});
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const LogitValues& current,
                                            const EvaluateOptions& options) {
  v1::EvaluateRequest request;
  request.mutable_gathered()->set_values(v1::Gathered::LOGITS);
  std::vector<PositionArray> arrays =
      AtSlots(current.logits, current.top_k_counts, current.sampled_logits.size());
  arrays.push_back(
      Column(kGathered, v1::Gathered::kSampledLogProbsFieldNumber, current.sampled_logits));
  arrays.push_back(Column(kGathered, v1::Gathered::kLogSumExpsFieldNumber, current.log_sum_exps));
  return Evaluate(run, slices, options, std::move(request), std::move(arrays));
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const TopKSetValues& current,
                                            const EvaluateOptions& options) {
  using Form = v1::TopK;
  const int form = v1::EvaluateRequest::kTopKSetFieldNumber;
  const size_t positions = current.sampled_log_probs.size();
  v1::EvaluateRequest request;
  request.mutable_top_k_set()->set_top_k(
      static_cast<uint32_t>(current.ids.size() / std::max<size_t>(1, positions)));
  return Evaluate(run, slices, options, std::move(request),
                  {Column(form, Form::kSampledLogProbsFieldNumber, current.sampled_log_probs),
                   SlotRows(form, Form::kIdsFieldNumber, current.ids, positions),
                   SlotRows(form, Form::kLogProbsFieldNumber, current.log_probs, positions)});
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const DenseValues& current,
                                            const EvaluateOptions& options) {
  using Form = v1::Dense;
  const int form = v1::EvaluateRequest::kDenseFieldNumber;
  size_t positions = 0;
  for (const Slice& slice : slices) positions += slice.length;
  const bool halves = !current.bfloat16_logits.empty();
  v1::EvaluateRequest request;
  request.mutable_dense()->set_values(halves ? Form::BFLOAT16_LOGITS : Form::LOGITS);
  std::vector<PositionArray> arrays = {
      halves ? SlotRows(form, Form::kLogitsFieldNumber, current.bfloat16_logits, positions)
             : SlotRows(form, Form::kLogitsFieldNumber, current.logits, positions)};
  if (!current.sampled_ids.empty()) {
    arrays.push_back(Column(form, Form::kSampledIdsFieldNumber, current.sampled_ids));
  }
  return Evaluate(run, slices, options, std::move(request), std::move(arrays));
}

absl::StatusOr<Evaluation> Client::Evaluate(const RunRef& run, std::span<const Slice> slices,
                                            const EvaluateOptions& options,
                                            v1::EvaluateRequest request,
                                            std::vector<PositionArray> arrays) {
  ToMessage(run, *request.mutable_run());
  size_t positions = 0;
  for (const Slice& slice : slices) {
    ToMessage(slice, *request.add_slices());
    positions += slice.length;
  }
  if (absl::Status status = WriteOptions(options, request); !status.ok()) return status;
  for (const PositionArray& array : OptionArrays(options)) arrays.push_back(array);
  const std::vector<size_t> numbers = LeaveOutEmptySlices(request);

  // Arrays that are not of the right size go as they are, to be refused.
  const bool fit = std::ranges::all_of(
      arrays, [&](const PositionArray& array) { return array.Holds(positions); });
  if (fit && positions == 0 && !slices.empty()) return NothingDecided(options, slices.size());
  const bool cut = fit && !options.needs_one_request(slices);
  MicroBatches batches(std::move(request), std::move(arrays), *segments_,
                       cut ? batch_bytes_ : SIZE_MAX);
  const absl::StatusOr<std::vector<v1::EvaluateResponse>> answers = Send(batches);
  if (!answers.ok()) return answers.status();
  absl::StatusOr<Evaluation> evaluation = batches.Merge(*answers, options.outputs);
  if (evaluation.ok())
    AddEmptySlices(numbers, slices.size(), options.trust_regions.size(), *evaluation);
  return evaluation;
}

absl::StatusOr<std::vector<v1::EvaluateResponse>> Client::Send(MicroBatches& batches) {
  if (batches.size() > 1 && streams_ != nullptr) {
    absl::StatusOr<std::vector<v1::EvaluateResponse>> answers = streams_->Evaluate(
        batches.size(), [&](size_t i) { return batches.Request(i); },
        absl::Now() + options_.call_timeout);
    // A server that came back without the run, or whose lease has ended, is the service's business.
    const absl::Status& status = answers.status();
    if (!absl::IsNotFound(status) && !absl::IsFailedPrecondition(status) &&
        !absl::IsUnavailable(status) && !absl::IsCancelled(status)) {
      return answers;
    }
  }
  std::vector<v1::EvaluateResponse> answers;
  for (size_t i = 0; i < batches.size(); ++i) {
    absl::StatusOr<v1::EvaluateResponse> answer = service_->Evaluate(batches.Message(i));
    if (!answer.ok()) return answer.status();
    answers.push_back(*std::move(answer));
  }
  return answers;
}

}  // namespace sis
