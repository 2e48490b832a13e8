// Latency of acks, fetches and evaluations that run concurrently, by load, with each store.
//
//     mixed [--tokens_per_second=5000,20000,50000] [--seconds=10] [--top_k=20]
//
// 64 workers decode eight sequences each: at every decoding step a worker appends one token to each
// of them, and waits for the acks before the next. Eight data-parallel ranks fetch what is
// finished, evaluate it once, and release it, four sequences at a time. All are threads of this
// process, which shares the machine's cores with the server. Steps begin by the clock, at the
// requested rate, and the time of an ack begins at the scheduled start of its step. A server that
// falls behind therefore shows in the times, not only in the rate.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "kernels/block/block.h"
#include "kernels/block/pack.h"
#include "server/testing/backing.h"
#include "server/testing/server_process.h"
#include "sis/v1/ratio_service.pb.h"

ABSL_FLAG(std::vector<std::string>, tokens_per_second,
          (std::vector<std::string>{"5000", "20000", "50000"}), "that all workers decode");
ABSL_FLAG(std::vector<std::string>, stores, (std::vector<std::string>{"memory", "rocksdb"}),
          "behind the server");
ABSL_FLAG(int, seconds, 10, "of each load");
ABSL_FLAG(int, top_k, 20, "slots per position");

namespace sis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 64;
constexpr int kSequencesOfWorker = 8;
// Tokens of a response. A worker's first responses are shorter, so that not all end at once.
constexpr uint32_t kLength = 128;
constexpr int kRanks = 8;
constexpr size_t kSequencesOfCall = 4;
constexpr uint32_t kVocabulary = 151'936;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "mixed: %s\n", what.c_str());
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Thread-safe.
class Latencies {
 public:
  void Add(double seconds) {
    const std::lock_guard lock(mutex_);
    seconds_.push_back(seconds);
  }
  // "median / p99", in ms.
  std::string Text() {
    const std::lock_guard lock(mutex_);
    if (seconds_.empty()) return "none";
    std::sort(seconds_.begin(), seconds_.end());
    const auto quantile = [&](double q) {
      return 1e3 * seconds_[static_cast<size_t>(q * static_cast<double>(seconds_.size() - 1))];
    };
    char text[40];
    std::snprintf(text, sizeof text, "%.2f / %.2f", quantile(0.5), quantile(0.99));
    return text;
  }

 private:
  std::mutex mutex_;
  std::vector<double> seconds_;
};

// Sequences that are sealed and not yet trained on. Thread-safe.
class Finished {
 public:
  void Add(const std::vector<v1::SequenceRef>& sequences) {
    const std::lock_guard lock(mutex_);
    waiting_.insert(waiting_.end(), sequences.begin(), sequences.end());
    ready_.notify_all();
  }
  void End() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    ready_.notify_all();
  }
  // kSequencesOfCall of them; none at the end.
  std::vector<v1::SequenceRef> Take() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return ended_ || waiting_.size() >= kSequencesOfCall; });
    if (ended_) return {};
    const auto last = waiting_.begin() + kSequencesOfCall;
    std::vector<v1::SequenceRef> taken(waiting_.begin(), last);
    waiting_.erase(waiting_.begin(), last);
    return taken;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<v1::SequenceRef> waiting_;
  bool ended_ = false;
};

// A server under one load.
class Load {
 public:
  Load(const std::string& address, const std::string& run_id, double tokens_per_second, int top_k)
      : period_(kWorkers * kSequencesOfWorker / tokens_per_second) {
    run_.set_run_id(run_id);
    for (int i = 0; i < top_k; ++i) {
      ids_.push_back(7 * i);
      log_probs_.push_back(-1.0F - 0.5F * static_cast<float>(i));
    }
    for (int i = 0; i < kWorkers + kRanks; ++i) {
      clients_.push_back(std::make_unique<Client>(address));
    }
    v1::CreateRunRequest request;
    request.set_run_id(run_id);
    v1::RunConfig& config = *request.mutable_config();
    config.set_seed(1);
    config.set_vocabulary_size(kVocabulary);
    config.set_top_k(top_k);
    Check(clients_[0]->CreateRun(request).status());
  }

  void Run(int seconds) {
    start_ = Clock::now();
    end_ = start_ + std::chrono::seconds(seconds);
    std::vector<std::thread> workers, ranks;
    for (int i = 0; i < kWorkers; ++i) workers.emplace_back([this, i] { Work(i); });
    for (int i = 0; i < kRanks; ++i) ranks.emplace_back([this, i] { Train(i); });
    for (std::thread& worker : workers) worker.join();
    elapsed_ = Seconds(Clock::now() - start_);
    finished_.End();
    for (std::thread& rank : ranks) rank.join();
    v1::DeleteRunRequest request;
    *request.mutable_run() = run_;
    Check(clients_[0]->DeleteRun(request).status());
  }

  double tokens_per_second() const { return static_cast<double>(appended_) / elapsed_; }
  double evaluated_per_second() const { return static_cast<double>(evaluated_) / elapsed_; }
  Latencies acks, fetches, evaluations;

 private:
  void Work(int worker) {
    v1::AppendHeader header;
    *header.mutable_run() = run_;
    header.set_vocabulary_size(kVocabulary);
    header.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
    header.mutable_sampling()->set_temperature(1);
    const auto stream = clients_[worker]->OpenAppend(header);
    // Workers begin at different times, and at different positions, as those of an engine do.
    double due = period_ * worker / kWorkers;
    int finished = 0;
    std::vector<v1::SequenceRef> sequences = NewSequences(worker, finished);
    uint32_t position = 0;
    uint32_t length = kLength * static_cast<uint32_t>(worker + 1) / kWorkers;
    while (true) {
      const Clock::time_point begin =
          start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due));
      if (begin >= end_) break;
      std::this_thread::sleep_until(begin);
      if (Clock::now() >= end_) break;
      const std::vector<std::byte> token = Token(position);
      for (const v1::SequenceRef& sequence : sequences) stream->AddBlock(sequence, token);
      Check(stream->Flush());
      acks.Add(Seconds(Clock::now() - begin));
      appended_ += kSequencesOfWorker;
      due += period_;
      if (++position < length) continue;
      v1::Seal seal;
      seal.set_length(position);
      for (const v1::SequenceRef& sequence : sequences) stream->AddSeal(sequence, seal);
      Check(stream->Flush());
      finished_.Add(sequences);
      sequences = NewSequences(worker, ++finished);
      position = 0;
      length = kLength;
    }
  }

  void Train(int rank) {
    const Client& client = *clients_[kWorkers + rank];
    for (std::vector<v1::SequenceRef> taken; !(taken = finished_.Take()).empty();) {
      Clock::time_point begin = Clock::now();
      const v1::EvaluateRequest request = Fetch(client, rank, taken);
      fetches.Add(Seconds(Clock::now() - begin));
      begin = Clock::now();
      const absl::StatusOr<v1::EvaluateResponse> response = client.Evaluate(request);
      Check(response.status());
      evaluations.Add(Seconds(Clock::now() - begin));
      if (response->missing_size() > 0) Fail("positions are missing");
      evaluated_ += static_cast<int64_t>(response->newly_counted());
      v1::ReleaseRequest release;
      *release.mutable_run() = run_;
      release.mutable_sequences()->Assign(taken.begin(), taken.end());
      Check(client.Release(release).status());
    }
  }

  // The evaluation of these sequences by the policy that recorded them.
  v1::EvaluateRequest Fetch(const Client& client, int rank,
                            const std::vector<v1::SequenceRef>& sequences) const {
    v1::FetchTopKRequest request;
    *request.mutable_run() = run_;
    for (const v1::SequenceRef& sequence : sequences) {
      *request.add_slices()->mutable_sequence() = sequence;
    }
    const absl::StatusOr<std::vector<v1::FetchedSlice>> fetched = client.FetchTopK(request);
    Check(fetched.status());
    v1::EvaluateRequest evaluation;
    *evaluation.mutable_run() = run_;
    evaluation.set_draw(static_cast<uint64_t>(rank) + 1);
    evaluation.add_outputs(v1::OUTPUT_ACCEPT_BITS);
    for (size_t i = 0; i < fetched->size(); ++i) {
      const v1::FetchedSlice& found = (*fetched)[i];
      for (const std::string& block : found.blocks()) {
        AddCurrent(block, *evaluation.mutable_gathered());
      }
      v1::Slice& slice = *evaluation.add_slices() = request.slices(static_cast<int>(i));
      slice.set_length(found.length());
      slice.set_record_digest(found.record_digest());
    }
    return evaluation;
  }

  // `block` has no part 1.
  void AddCurrent(const std::string& block, v1::Gathered& current) const {
    BlockHeader header;
    std::memcpy(&header, block.data(), sizeof header);
    const size_t sampled_bytes = sizeof(float) * header.positions;
    const std::string counts = block.substr(sizeof header + sampled_bytes, header.positions);
    *current.mutable_counts() += counts;
    *current.mutable_sampled_log_probs() += block.substr(sizeof header, sampled_bytes);
    for (const char count : counts) {
      current.mutable_log_probs()->append(reinterpret_cast<const char*>(log_probs_.data()),
                                          sizeof(float) * static_cast<uint8_t>(count));
    }
  }

  // The block of one token.
  std::vector<std::byte> Token(uint32_t position) const {
    return *PackBlock({.sampled_ids = std::span(ids_).first(1),
                       .sampled_log_probs = std::span(log_probs_).first(1),
                       .ids = ids_,
                       .log_probs = log_probs_},
                      {.slots = static_cast<int>(ids_.size()),
                       .vocabulary_size = kVocabulary,
                       .first_position = position});
  }

  static std::vector<v1::SequenceRef> NewSequences(int worker, int number) {
    std::vector<v1::SequenceRef> sequences(kSequencesOfWorker);
    for (int i = 0; i < kSequencesOfWorker; ++i) {
      sequences[i].set_id(absl::StrCat("worker-", worker, "/", number, "/", i));
    }
    return sequences;
  }

  v1::RunRef run_;
  const double period_;       // seconds between a worker's steps
  std::vector<int32_t> ids_;  // that every token records, sampled is the first
  std::vector<float> log_probs_;
  std::vector<std::unique_ptr<const Client>> clients_;
  Finished finished_;
  Clock::time_point start_, end_;
  double elapsed_ = 0;
  std::atomic<int64_t> appended_ = 0;
  std::atomic<int64_t> evaluated_ = 0;
};

void Main() {
  const int seconds = absl::GetFlag(FLAGS_seconds);
  std::printf(
      "| store | tokens/s | appended | evaluated | ack, ms | fetch, ms | evaluate, ms | server's "
      "cores |\n|---|---|---|---|---|---|---|---|\n");
  for (const std::string& name : absl::GetFlag(FLAGS_stores)) {
    const TemporaryDirectory directory;
    std::string store = name;
    if (name == "rocksdb") store = absl::StrCat("rocksdb:", directory.path(), "/db");
    const ServerProcess server(
        {"--listen=127.0.0.1:0", "--cache_bytes=1073741824", absl::StrCat("--store=", store)});
    for (const std::string& rate : absl::GetFlag(FLAGS_tokens_per_second)) {
      Load load(server.address(), absl::StrCat("mixed-", rate), std::stod(rate),
                absl::GetFlag(FLAGS_top_k));
      const double before = server.cpu_seconds();
      const Clock::time_point begin = Clock::now();
      load.Run(seconds);
      const double cores = (server.cpu_seconds() - before) / Seconds(Clock::now() - begin);
      std::printf("| %s | %s | %.0f | %.0f | %s | %s | %s | %.2f |\n", name.c_str(), rate.c_str(),
                  load.tokens_per_second(), load.evaluated_per_second(), load.acks.Text().c_str(),
                  load.fetches.Text().c_str(), load.evaluations.Text().c_str(), cores);
      std::fflush(stdout);
    }
  }
  double loads[3];
  if (getloadavg(loads, 3) == 3) {
    std::printf("\nTimes are median / p99. Load of the machine at the end: %.1f\n", loads[0]);
  }
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Acks, fetches and evaluations. See the head of tests/bench/mixed.cc.");
  absl::ParseCommandLine(argc, argv);
  sis::Main();
  return 0;
}
