// What acks, fetches and evaluations take while all are under way, against load, with each store.
//
//     mixed [--tokens_per_second=5000,20000,50000] [--seconds=10] [--top_k=20]
//
// 64 workers decode eight sequences each: at every decoding step a worker appends one token to each
// of them, and waits for the acks before the next. Eight data-parallel ranks fetch what is
// finished, evaluate it once, and release it, four sequences at a time. All are threads of this
// process, which shares the machine's cores with the server. Steps begin by the clock, at the rate
// that is asked for, and an ack counts from when its step should have begun; so a server that falls
// behind shows in the times, not only in the rate.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
#include "client/api/client.h"
#include "server/testing/backing.h"
#include "server/testing/server_process.h"

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
// Of a response; those that a worker begins with are shorter, so that not all end at once.
constexpr uint32_t kLength = 128;
constexpr int kRanks = 8;
constexpr size_t kSequencesOfCall = 4;
constexpr uint32_t kVocabulary = 151'936;

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "mixed: %s\n", status.ToString().c_str());
  std::exit(1);
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
  void Add(const std::vector<SequenceRef>& sequences, uint32_t length) {
    const std::lock_guard lock(mutex_);
    for (const SequenceRef& sequence : sequences) slices_.push_back({sequence, 0, length});
    ready_.notify_all();
  }
  void End() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    ready_.notify_all();
  }
  // kSequencesOfCall of them; none at the end.
  std::vector<Slice> Take() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return ended_ || slices_.size() >= kSequencesOfCall; });
    if (ended_) return {};
    const auto last = slices_.begin() + kSequencesOfCall;
    std::vector<Slice> taken(slices_.begin(), last);
    slices_.erase(slices_.begin(), last);
    return taken;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Slice> slices_;
  bool ended_ = false;
};

// A server under one load.
class Load {
 public:
  Load(const std::string& address, std::string run_id, double tokens_per_second, int top_k)
      : run_{std::move(run_id)}, period_(kWorkers * kSequencesOfWorker / tokens_per_second) {
    ids_.resize(top_k);
    log_probs_.resize(top_k);
    for (int i = 0; i < top_k; ++i) {
      ids_[i] = 7 * i;
      log_probs_[i] = -1.0F - 0.5F * static_cast<float>(i);
    }
    for (int i = 0; i < kWorkers + kRanks; ++i) {
      auto client = Client::Connect(address);
      if (!client.ok()) Fail(client.status());
      clients_.push_back(*std::move(client));
    }
    v1::RunConfig config;
    config.set_seed(1);
    config.set_vocabulary_size(kVocabulary);
    config.set_top_k(top_k);
    config.set_log_prob_encoding(v1::FIXED12);
    const auto created = clients_[0]->CreateRun(run_.run_id, config);
    if (!created.ok()) Fail(created.status());
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
    if (const auto deleted = clients_[0]->DeleteRun(run_); !deleted.ok()) Fail(deleted.status());
  }

  double tokens_per_second() const { return static_cast<double>(appended_) / elapsed_; }
  double evaluated_per_second() const { return static_cast<double>(evaluated_) / elapsed_; }
  Latencies acks, fetches, evaluations;

 private:
  void Work(int worker) {
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::PROCESSED);
    sampling.set_temperature(1);
    const auto stream = clients_[worker]->Append(run_, sampling, kVocabulary);
    const RecordView token = {std::span(ids_).first(1), std::span(log_probs_).first(1), ids_,
                              log_probs_};
    // Workers begin at different times, and at different positions, as those of an engine do.
    double due = period_ * worker / kWorkers;
    int finished = 0;
    std::vector<SequenceRef> sequences = NewSequences(worker, finished);
    uint32_t position = 0;
    uint32_t length = kLength * static_cast<uint32_t>(worker + 1) / kWorkers;
    while (true) {
      const Clock::time_point begin =
          start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due));
      if (begin >= end_) break;
      std::this_thread::sleep_until(begin);
      if (Clock::now() >= end_) break;
      std::vector<AppendEntry> entries;
      for (const SequenceRef& sequence : sequences) {
        entries.push_back(BlockEntry{sequence, position, 0, token});
      }
      Check(stream->AppendMany(entries));
      Settle(*stream);
      acks.Add(Seconds(Clock::now() - begin));
      appended_ += kSequencesOfWorker;
      due += period_;
      if (++position < length) continue;
      entries.clear();
      for (const SequenceRef& sequence : sequences) {
        entries.push_back(SealEntry{sequence, position});
      }
      Check(stream->AppendMany(entries));
      Settle(*stream);
      finished_.Add(sequences, position);
      sequences = NewSequences(worker, ++finished);
      position = 0;
      length = kLength;
    }
    Settle(*stream);
  }

  void Train(int rank) {
    Client& client = *clients_[kWorkers + rank];
    EvaluateOptions options;
    options.draw = rank + 1;
    for (std::vector<Slice> slices; !(slices = finished_.Take()).empty();) {
      Clock::time_point begin = Clock::now();
      const auto records = client.FetchTopK(run_, slices);
      if (!records.ok()) Fail(records.status());
      fetches.Add(Seconds(Clock::now() - begin));
      begin = Clock::now();
      const auto evaluation =
          client.Evaluate(run_, records->slices,
                          GatheredValues{records->log_probs, records->sampled_log_probs}, options);
      if (!evaluation.ok()) Fail(evaluation.status());
      evaluations.Add(Seconds(Clock::now() - begin));
      if (!evaluation->missing.empty()) Fail(absl::InternalError("positions are missing"));
      evaluated_ += static_cast<int64_t>(records->positions());
      std::vector<SequenceRef> sequences;
      for (const Slice& slice : slices) sequences.push_back(slice.sequence);
      if (const auto released = client.Release(run_, sequences, {}); !released.ok()) {
        Fail(released.status());
      }
    }
  }

  static std::vector<SequenceRef> NewSequences(int worker, int number) {
    std::vector<SequenceRef> sequences;
    for (int i = 0; i < kSequencesOfWorker; ++i) {
      sequences.push_back({absl::StrCat("worker-", worker, "/", number, "/", i)});
    }
    return sequences;
  }
  static void Check(const absl::Status& status) {
    if (!status.ok()) Fail(status);
  }
  static void Settle(AppendWriter& stream) {
    const auto refused = stream.Flush();
    if (!refused.ok()) Fail(refused.status());
    if (!refused->empty()) Fail(refused->front().status);
  }

  const RunRef run_;
  const double period_;  // seconds between a worker's steps
  std::vector<int32_t> ids_;
  std::vector<float> log_probs_;
  std::vector<std::unique_ptr<Client>> clients_;
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
