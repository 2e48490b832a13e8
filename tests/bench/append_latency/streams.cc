// Append by the C++ client, next to its parts: the time from a message to its ack, and processor
// time.
//
//     streams [--top_k=10,50] [--rounds=10]
//
// One stream sends one token a message, and 256 streams send 16. At most 16 threads send, each on
// its streams in turn, and wait for every ack before the next message. Three ways run in turn in
// each round:
//
// - Append: sis_server. The client also packs its blocks.
// - parsed: the same client and messages; echo_server only parses and acks them.
// - echo: messages of the same size, made beforehand; the answers have an ack's size.
//
// Printed are medians over the rounds, and the median ratios to the echo of the same round with
// their least and most.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "kernels/block/pack.h"
#include "server/testing/child_process.h"
#include "server/testing/server_process.h"
#include "sis/v1/ratio_service.pb.h"

ABSL_FLAG(std::vector<std::string>, top_k, (std::vector<std::string>{"10", "50"}),
          "slots per token");
ABSL_FLAG(int, rounds, 10, "of all ways");

namespace sis {
namespace {

using Clock = std::chrono::steady_clock;

struct Load {
  int streams;
  int tokens;    // of a message
  int messages;  // of a stream in a round
};

constexpr Load kLoads[] = {{1, 1, 2000}, {256, 16, 32}};
constexpr int kThreads = 16;
constexpr uint32_t kVocabulary = 151'936;
constexpr char kEcho[] = "tests/bench/append_latency/echo_server";
// An AppendResponse with one ack.
constexpr char kAckBytes[] = "30";

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "streams: %s\n", what.c_str());
  std::exit(1);
}

void Check(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

// The same tokens for every block.
class Tokens {
 public:
  Tokens(int count, int top_k)
      : sampled_ids_(count, 0), sampled_log_probs_(count, -1.0F), top_k_(top_k) {
    for (int i = 0; i < count * top_k; ++i) {
      ids_.push_back(7 * (i % top_k));
      log_probs_.push_back(-1.0F - 0.5F * static_cast<float>(i % top_k));
    }
  }

  RecordView view() const { return {sampled_ids_, sampled_log_probs_, ids_, log_probs_}; }
  PackOptions From(uint32_t first_position) const {
    return {.slots = top_k_, .vocabulary_size = kVocabulary, .first_position = first_position};
  }
  uint32_t count() const { return static_cast<uint32_t>(sampled_ids_.size()); }

 private:
  std::vector<int32_t> sampled_ids_, ids_;
  std::vector<float> sampled_log_probs_, log_probs_;
  int top_k_;
};

// Appends to a sequence of its own.
class Append {
 public:
  Append(const Client& client, const v1::AppendHeader& header, const Tokens& tokens,
         const std::string& id)
      : tokens_(tokens), stream_(client.OpenAppend(header)) {
    sequence_.set_id(id);
  }
  void Exchange() {
    Check(stream_->AddBlock(sequence_, tokens_.view(), tokens_.From(position_)));
    Check(stream_->Flush());
    position_ += tokens_.count();
  }

 private:
  const Tokens& tokens_;
  const std::unique_ptr<AppendStream> stream_;
  v1::SequenceRef sequence_;
  uint32_t position_ = 0;
};

class Echo {
 public:
  Echo(grpc::GenericStub& stub, const std::string& message)
      : stream_(stub.PrepareCall(&context_, "/echo", &queue_)) {
    const grpc::Slice slice(message);
    message_ = grpc::ByteBuffer(&slice, 1);
    stream_->StartCall(nullptr);
    Wait();
  }
  ~Echo() {
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }
  void Exchange() {
    stream_->Write(message_, nullptr);
    Wait();
    grpc::ByteBuffer answer;
    stream_->Read(&answer, nullptr);
    Wait();
  }

 private:
  void Wait() {
    void* tag;
    bool ok;
    if (!queue_.Next(&tag, &ok) || !ok) Fail("the echo has ended");
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer message_;
};

double ProcessorSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

// Microseconds of a message.
struct Measured {
  double p50, p99;        // from a message to its ack
  double client, server;  // processor time
};

template <typename Stream>
Measured Round(const std::vector<std::unique_ptr<Stream>>& streams, int messages,
               const ChildProcess& server) {
  const size_t threads = std::min<size_t>(kThreads, streams.size());
  std::vector<std::vector<double>> times(threads);
  const double client_before = ProcessorSeconds(), server_before = server.cpu_seconds();
  std::vector<std::thread> running;
  for (size_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (int message = 0; message < messages; ++message) {
        for (size_t i = thread; i < streams.size(); i += threads) {
          const Clock::time_point begin = Clock::now();
          streams[i]->Exchange();
          times[thread].push_back(
              std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  const double us = 1e6 / static_cast<double>(messages * streams.size());
  std::vector<double> all;
  for (const std::vector<double>& part : times) all.insert(all.end(), part.begin(), part.end());
  return {Quantile(all, 0.5), Quantile(all, 0.99), us * (ProcessorSeconds() - client_before),
          us * (server.cpu_seconds() - server_before)};
}

// "median, median ratio to the echo (least, most)".
std::string Cell(const std::vector<Measured>& way, const std::vector<Measured>& echo,
                 double (*value)(const Measured&)) {
  std::vector<double> values, ratios;
  // The first round opens the streams.
  for (size_t i = 1; i < way.size(); ++i) {
    values.push_back(value(way[i]));
    ratios.push_back(values.back() / value(echo[i]));
  }
  char text[80];
  std::snprintf(text, sizeof text, "%.0f, %.2f (%.2f, %.2f)", Quantile(values, 0.5),
                Quantile(ratios, 0.5), Quantile(ratios, 0), Quantile(ratios, 1));
  return text;
}

void Measure(const Load& load, int top_k, int rounds) {
  const ServerProcess server({"--listen=127.0.0.1:0", "--cache_bytes=1073741824"});
  ChildProcess echo_server({kEcho, "127.0.0.1:0", kAckBytes});
  const Client client(server.address());
  v1::CreateRunRequest create;
  create.set_run_id("streams");
  create.mutable_config()->set_seed(1);
  create.mutable_config()->set_vocabulary_size(kVocabulary);
  create.mutable_config()->set_top_k(top_k);
  const absl::StatusOr<v1::CreateRunResponse> run = client.CreateRun(create);
  Check(run.status());
  v1::AppendHeader header;
  header.mutable_run()->set_run_id("streams");
  header.mutable_run()->set_incarnation(run->incarnation());
  header.set_vocabulary_size(kVocabulary);
  header.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
  header.mutable_sampling()->set_temperature(1);

  const Tokens tokens(load.tokens, top_k);
  v1::AppendRequest message;
  v1::AppendEntry& entry = *message.mutable_batch()->add_entries();
  entry.mutable_sequence()->set_id("stream-100");
  const auto block = PackBlock(tokens.view(), tokens.From(0));
  Check(block.status());
  entry.set_block(block->data(), block->size());
  const std::string echo_address = echo_server.ReadLine();
  grpc::GenericStub stub(grpc::CreateChannel(echo_address, grpc::InsecureChannelCredentials()));
  const Client to_echo(echo_address);
  std::vector<std::unique_ptr<Append>> appends, parsed;
  std::vector<std::unique_ptr<Echo>> echoes;
  for (int i = 0; i < load.streams; ++i) {
    const std::string id = absl::StrCat("stream-", i);
    appends.push_back(std::make_unique<Append>(client, header, tokens, id));
    parsed.push_back(std::make_unique<Append>(to_echo, header, tokens, id));
    echoes.push_back(std::make_unique<Echo>(stub, message.SerializeAsString()));
  }
  std::vector<Measured> of_append, of_parsed, of_echo;
  for (int round = 0; round <= rounds; ++round) {
    of_append.push_back(Round(appends, load.messages, server));
    of_parsed.push_back(Round(parsed, load.messages, echo_server));
    of_echo.push_back(Round(echoes, load.messages, echo_server));
  }
  const std::pair<const char*, double (*)(const Measured&)> rows[] = {
      {"p50", [](const Measured& m) { return m.p50; }},
      {"p99", [](const Measured& m) { return m.p99; }},
      {"client", [](const Measured& m) { return m.client; }},
      {"server", [](const Measured& m) { return m.server; }},
      {"client and server", [](const Measured& m) { return m.client + m.server; }},
  };
  for (const auto& [name, value] : rows) {
    std::printf("| %d | %d | %d | %s | %s | %s | %s |\n", load.streams, load.tokens, top_k, name,
                Cell(of_append, of_echo, value).c_str(), Cell(of_parsed, of_echo, value).c_str(),
                Cell(of_echo, of_echo, value).c_str());
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Append by the C++ client, next to its parts.");
  absl::ParseCommandLine(argc, argv);
  std::printf(
      "Microseconds a message, ratio to the echo (least, most)\n\n"
      "| streams | tokens | K | | Append | parsed | echo |\n|---|---|---|---|---|---|---|\n");
  for (const std::string& top_k : absl::GetFlag(FLAGS_top_k)) {
    for (const sis::Load& load : sis::kLoads) {
      sis::Measure(load, std::stoi(top_k), absl::GetFlag(FLAGS_rounds));
    }
  }
}
