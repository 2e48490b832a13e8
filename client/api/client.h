// The C++ client of the ratio service (proto/sis/v1/ratio_service.proto): plain arrays in, plain
// arrays out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/api/evaluate_form.h"
#include "client/api/evaluate_options.h"
#include "client/one_server/append_writer.h"
#include "client/one_server/channel.h"
#include "client/one_server/credentials.h"
#include "client/types/types.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class Replicas;

struct ClientOptions {
  // How long Connect waits for the server to answer.
  absl::Duration connect_timeout = absl::Seconds(10);
  // The deadline of every call but Append, which lasts as long as its stream.
  absl::Duration call_timeout = absl::Minutes(5);
  // Bytes of one Evaluate request; a larger Evaluate is sent as several, one after the other.
  size_t micro_batch_bytes = 4 << 20;
  // Who the client is, and TLS: Credentials::FromEnvironment() for what users have set.
  Credentials credentials = {};
};

struct FetchOptions {
  // The records are not evicted until so long after the last call that named the lease. Zero: no
  // lease.
  absl::Duration lease = absl::ZeroDuration();
  // Those that are wanted; the others are empty. None: all four.
  std::vector<v1::RecordArray> arrays = {};
  // Only used slots travel: see TopKRecords. For runs with a mass target.
  bool ragged = false;
};

// One server, or several that share the sequences. Thread-safe. Every method returns the server's
// status: InvalidArgument names field, sequence, position and value; Unavailable and
// DeadlineExceeded may be retried, as all calls are idempotent. A server that comes back without
// memory is told again of the runs that this client opened or looked up: their positions are
// MISSING until workers append again, and training goes on.
class Client {
 public:
  // Waits until the server at host:port answers; Unavailable if it doesn't within the time,
  // InvalidArgument for credentials that will not do.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address,
                                                         const ClientOptions& options = {});

  // The same over several replicas: every call does what it does with one server that holds
  // everything. Give all workers and trainers the same addresses, which must be different
  // (docs/placement.md). While a replica gives no answer, its sequences are MISSING (STORE_DOWN),
  // and for some seconds after that no call waits for it. Unavailable if none answers within the
  // time.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::vector<std::string>& addresses,
                                                         const ClientOptions& options = {});

  // Over a channel that is there, such as that of a server in this process.
  explicit Client(const std::shared_ptr<grpc::Channel>& channel, const ClientOptions& options = {});

  ~Client();

  // Incarnation 0 is the present one, or the first of a new run.
  absl::StatusOr<v1::CreateRunResponse> CreateRun(const std::string& run_id,
                                                  const v1::RunConfig& config,
                                                  uint64_t incarnation = 0);
  // Returns how many sequences were dropped as stale.
  absl::StatusOr<uint64_t> AdvanceVersion(const RunRef& run, uint64_t policy_version);
  absl::StatusOr<v1::Run> GetRun(const std::string& run_id);
  // Here and in GetStep, ListSteps, GetHistory, ListSequences and InspectRun replicas that gave no
  // answer are left out; `unanswered` says which these are.
  absl::StatusOr<v1::ListRunsResponse> ListRuns();
  // Forgets a run with all that is held of it; incarnation 0: whichever is present. Returns whether
  // it was there. Whoever still holds it gets NotFound or FailedPrecondition. With several replicas
  // all must answer: else Unavailable or DeadlineExceeded, and the call is to be repeated.
  absl::StatusOr<bool> DeleteRun(const RunRef& run);
  absl::StatusOr<v1::GetStepResponse> GetStep(const RunRef& run, uint64_t draw);
  // All draws that are kept, the one evaluated last at the end.
  absl::StatusOr<v1::ListStepsResponse> ListSteps(const RunRef& run);
  // All draws since the run was opened, older ones merged with their neighbours, the one evaluated
  // last at the end. What several replicas have is merged into the stretches of the one that has
  // most.
  absl::StatusOr<v1::GetHistoryResponse> GetHistory(const RunRef& run);
  // A page of those that the servers have in memory: those after `after`, or from the first.
  absl::StatusOr<v1::ListSequencesResponse> ListSequences(const RunRef& run,
                                                          const std::optional<SequenceRef>& after);
  // What each server is, holds and did, in the order of the addresses.
  std::vector<absl::StatusOr<v1::GetServerResponse>> GetServers();
  // What is worth a closer look in the run: the sequences that InspectSequence can open, and
  // tokens and positions that stand out.
  absl::StatusOr<v1::InspectRunResponse> InspectRun(const RunRef& run);
  // The last evaluated values of a sequence, beside what is recorded. NotFound if none are kept.
  absl::StatusOr<v1::InspectSequenceResponse> InspectSequence(const RunRef& run,
                                                              const SequenceRef& sequence);

  // Opens a stream; an unknown run or a refused header shows in its first Flush.
  std::unique_ptr<AppendWriter> Append(const RunRef& run, const v1::Sampling& sampling,
                                       uint32_t vocabulary_size, const AppendOptions& options = {});
  absl::StatusOr<v1::ReleaseResponse> Release(const RunRef& run,
                                              std::span<const SequenceRef> sequences,
                                              std::span<const uint64_t> lease_ids);

  absl::StatusOr<TopKRecords> FetchTopK(const RunRef& run, std::span<const Slice> slices,
                                        const FetchOptions& options = {});

  // The arrays hold one row per position, slice by slice. A slice of length 0 is what FetchTopK
  // returns of a lost sequence that was asked for as a whole: it has no rows, and the others are
  // decided. Name the length in FetchTopK, and a lost sequence keeps its rows, all MISSING.
  absl::StatusOr<Evaluation> Evaluate(const RunRef& run, std::span<const Slice> slices,
                                      const EvaluateForm& current, const EvaluateOptions& options);

 private:
  explicit Client(std::unique_ptr<Replicas> replicas);

  const std::unique_ptr<Replicas> replicas_;
};

}  // namespace sis
