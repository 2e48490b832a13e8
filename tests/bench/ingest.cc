// How fast blocks get into the cache: sis_server beside redis-server, over loopback TCP, on the
// same cores, in turn.
//
//     ingest [--top_k=10,50] [--block_tokens=1,32,1024] [--streams=1,16,256]
//            [--megabytes=64] [--repetitions=5] [--segments]
//
// A stream is a connection with a worker behind it: the worker sends batches of blocks, one block
// of each of its sequences, with up to four batches under way. For Redis a batch is a pipeline of
// commands: SET stores each block under a key of its own, APPEND each at the end of its sequence's
// value; the values are the four arrays of the block. sis_server parses, checks the checksum,
// validates every record, stores it for evaluation and acks; Redis stores bytes, with its
// persistence off. Both get messages that were made beforehand, so the client's part is writing to
// sockets and waiting for answers; afterwards both are asked whether they have it all.
//
// With --segments sis_server's clients are on a Unix socket and the arrays lie in shared memory,
// made beforehand like the messages: what an engine that writes its records there would see.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "kernels/crc32c.h"
#include "sis/v1/ratio_service.grpc.pb.h"
#include "tests/integration/child_process.h"
#include "tests/integration/leased_segment.h"

ABSL_FLAG(std::vector<std::string>, top_k, (std::vector<std::string>{"10", "50"}),
          "slots per position");
ABSL_FLAG(std::vector<std::string>, block_tokens, (std::vector<std::string>{"1", "32", "1024"}),
          "positions per block");
ABSL_FLAG(std::vector<std::string>, streams, (std::vector<std::string>{"1", "16", "256"}),
          "concurrent streams");
ABSL_FLAG(int, megabytes, 64, "arrays per case; an eighth of it with blocks of one token");
ABSL_FLAG(int, repetitions, 5, "of every case");
ABSL_FLAG(bool, segments, false, "sis_server's arrays in shared memory");
ABSL_FLAG(std::string, server, "server/sis_server", "the program");

namespace sis {
namespace {

constexpr int kVocabulary = 151'936;
constexpr int kBatchesInFlight = 4;
constexpr int kDistinctPositions = 2048;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "ingest: %s\n", what.c_str());
  std::exit(1);
}

// --- What is sent ----------------------------------------------------------------------------

struct Case {
  int top_k;
  int block_tokens;
  int streams;

  // A worker's sequences: an engine's running batch, less where workers are many or blocks large.
  int sequences() const {
    const int of_one = block_tokens == 1 ? 256 : block_tokens <= 32 ? 32 : 1;
    return std::min(of_one, std::max(1, 4096 / streams));
  }
  int64_t bytes_per_token() const { return 8 * top_k + 8; }
  // Batches of each stream.
  int batches(int megabytes) const {
    const int64_t bytes = (int64_t{megabytes} << 20) / (block_tokens == 1 ? 8 : 1);
    const int64_t batch_bytes = bytes_per_token() * block_tokens * sequences();
    return static_cast<int>(std::max<int64_t>(kBatchesInFlight, bytes / batch_bytes / streams));
  }
  int64_t tokens(int megabytes) const {
    return int64_t{batches(megabytes)} * streams * sequences() * block_tokens;
  }
};

template <typename T>
std::string Bytes(const std::vector<T>& values, size_t first, size_t count) {
  return {reinterpret_cast<const char*>(values.data() + first), count * sizeof(T)};
}

// Records with full sets; the sampled token is one of them, or not.
class Recorded {
 public:
  explicit Recorded(int top_k) : top_k_(top_k) {
    std::mt19937 random(1);
    std::exponential_distribution<double> weight;
    std::vector<double> weights(top_k);
    for (int position = 0; position < kDistinctPositions; ++position) {
      double sum = weight(random);
      for (double& w : weights) sum += w = std::pow(weight(random), 3);
      std::sort(weights.begin(), weights.end(), std::greater<>());
      const auto first_id = static_cast<int32_t>(random() % 1000);
      for (int slot = 0; slot < top_k; ++slot) {
        ids_.push_back(first_id + 1000 * slot);
        log_probs_.push_back(static_cast<float>(std::log(weights[slot] / sum)));
      }
      const int rank = std::min<int>(random() % 4, top_k - 1);
      sampled_ids_.push_back(ids_[position * top_k + rank]);
      sampled_log_probs_.push_back(log_probs_[position * top_k + rank]);
    }
  }

  // Any, but the same for the same place.
  v1::Block Block(const std::string& sequence, uint32_t first_position, int count) const {
    v1::Block block;
    block.mutable_sequence()->set_id(sequence);
    block.set_first_position(first_position);
    const size_t from = first_position % (kDistinctPositions - count + 1);
    block.set_sampled_ids(Bytes(sampled_ids_, from, count));
    block.set_sampled_log_probs(Bytes(sampled_log_probs_, from, count));
    block.set_top_k_ids(Bytes(ids_, from * top_k_, count * top_k_));
    block.set_top_k_log_probs(Bytes(log_probs_, from * top_k_, count * top_k_));
    block.set_crc32c(Crc(block));
    return block;
  }

 private:
  static uint32_t Crc(const v1::Block& block) {
    uint32_t crc = 0;
    for (const std::string* array : {&block.sampled_ids(), &block.sampled_log_probs(),
                                     &block.top_k_ids(), &block.top_k_log_probs()}) {
      crc = ExtendCrc32c(crc, std::as_bytes(std::span(*array)));
    }
    return crc;
  }

  const int top_k_;
  std::vector<int32_t> sampled_ids_, ids_;
  std::vector<float> sampled_log_probs_, log_probs_;
};

// One side's messages of a stream, and how many answers each gets.
struct Messages {
  std::vector<std::string> sis;     // AppendRequests
  std::vector<std::string> set;     // pipelines
  std::vector<std::string> append;  // pipelines
};

std::string Command(const std::string& name, const std::string& key, const v1::Block& block) {
  const size_t bytes = block.sampled_ids().size() + block.sampled_log_probs().size() +
                       block.top_k_ids().size() + block.top_k_log_probs().size();
  return absl::StrCat("*3\r\n$", name.size(), "\r\n", name, "\r\n$", key.size(), "\r\n", key,
                      "\r\n$", bytes, "\r\n", block.sampled_ids(), block.sampled_log_probs(),
                      block.top_k_ids(), block.top_k_log_probs(), "\r\n");
}

std::vector<Messages> MakeMessages(const Case& c, int megabytes) {
  const Recorded recorded(c.top_k);
  std::vector<Messages> streams(c.streams);
  for (int stream = 0; stream < c.streams; ++stream) {
    for (int batch = 0; batch < c.batches(megabytes); ++batch) {
      v1::AppendRequest request;
      std::string set;
      std::string append;
      for (int sequence = 0; sequence < c.sequences(); ++sequence) {
        const std::string id = absl::StrCat("prompt-", stream, "/response-", sequence);
        const auto first = static_cast<uint32_t>(batch * c.block_tokens);
        const v1::Block block = recorded.Block(id, first, c.block_tokens);
        set += Command("SET", absl::StrCat(id, "/", first), block);
        append += Command("APPEND", id, block);
        *request.mutable_batch()->add_entries()->mutable_block() = block;
      }
      streams[stream].sis.push_back(request.SerializeAsString());
      streams[stream].set.push_back(std::move(set));
      streams[stream].append.push_back(std::move(append));
    }
  }
  return streams;
}

// --- The two sides ---------------------------------------------------------------------------

grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

// Counts what is left to do. Thread-safe.
class Countdown {
 public:
  explicit Countdown(int count) : count_(count) {}
  void Done() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) zero_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int count_;
};

// One stream: sends the header, then its messages, and reads the answers.
class SisStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  SisStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& header,
            const std::vector<std::string>& messages, Countdown& done)
      : stub_(channel), header_(header), messages_(messages), done_(done) {
    stub_.PrepareBidiStreamingCall(&context_, "/sis.v1.RatioService/Append", {}, this);
    write_ = Buffer(header_);
    AddHold();
    StartWrite(&write_);
    StartRead(&read_);
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) WriteNext();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    const std::lock_guard lock(mutex_);
    ++acked_;
    WriteNext();
    StartRead(&read_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) Fail(status.error_message());
    done_.Done();
  }

 private:
  void WriteNext() {
    if (writing_ || closed_ || sent_ - acked_ >= kBatchesInFlight) return;
    if (sent_ == messages_.size()) {
      closed_ = true;
      return StartWritesDone();
    }
    writing_ = true;
    write_ = Buffer(messages_[sent_++]);
    StartWrite(&write_);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const std::string& header_;
  const std::vector<std::string>& messages_;
  Countdown& done_;
  grpc::ByteBuffer write_, read_;

  std::mutex mutex_;  // guards what follows: reads and writes end on different threads
  bool writing_ = true;
  bool closed_ = false;
  size_t sent_ = 0;
  size_t acked_ = 0;
};

class Sis {
 public:
  Sis()
      : process_({absl::GetFlag(FLAGS_server), absl::StrCat("--listen=", Address()),
                  "--metrics=", "--cache_bytes=2147483648", "--shared_memory_bytes=2147483648"}),
        address_(process_.AwaitReady("grpc")) {}

  const ChildProcess& process() const { return process_; }

  void Connect(int streams) {
    channels_.clear();
    for (int i = 0; i < streams; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
      arguments.SetMaxReceiveMessageSize(-1);
      channels_.push_back(
          grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
      const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(30);
      if (!channels_.back()->WaitForConnected(deadline)) Fail("cannot connect to sis_server");
    }
  }

  // Moves the arrays of the messages into shared memory.
  void ShareArrays(std::vector<Messages>& streams, int megabytes) {
    const auto stub = v1::RatioService::NewStub(channels_[0]);
    // Small arrays take 64 bytes each.
    segment_ = std::make_unique<LeasedSegment>(*stub, (uint64_t{4} * megabytes + 4) << 20);
    if (!segment_->status().ok()) Fail(segment_->status().error_message());
    for (Messages& messages : streams) {
      for (std::string& bytes : messages.sis) {
        v1::AppendRequest request;
        request.ParseFromString(bytes);
        segment_->PutArrays(request);
        request.mutable_batch()->set_segment(segment_->name());
        request.SerializeToString(&bytes);
      }
    }
  }

  // An empty run.
  void Clear(const Case& c) {
    v1::CreateRunRequest request;
    request.set_run_id("ingest");
    request.set_incarnation(++incarnation_);
    request.mutable_config()->set_top_k(c.top_k);
    request.mutable_config()->set_vocabulary_size(kVocabulary);
    grpc::ClientContext context;
    v1::CreateRunResponse response;
    const auto stub = v1::RatioService::NewStub(channels_[0]);
    const grpc::Status status = stub->CreateRun(&context, request, &response);
    if (!status.ok()) Fail(status.error_message());
  }

  void Send(const std::vector<Messages>& streams) {
    v1::AppendRequest header;
    header.mutable_header()->mutable_run()->set_run_id("ingest");
    header.mutable_header()->set_vocabulary_size(kVocabulary);
    header.mutable_header()->mutable_sampling()->set_log_probs(v1::Sampling::RAW);
    header.mutable_header()->mutable_sampling()->set_temperature(1);
    const std::string header_bytes = header.SerializeAsString();
    Countdown done(static_cast<int>(streams.size()));
    std::vector<std::unique_ptr<SisStream>> reactors;
    for (size_t i = 0; i < streams.size(); ++i) {
      reactors.push_back(
          std::make_unique<SisStream>(channels_[i], header_bytes, streams[i].sis, done));
    }
    done.Wait();
  }

  void Check(int64_t tokens) {
    v1::GetRunRequest request;
    request.set_run_id("ingest");
    grpc::ClientContext context;
    v1::GetRunResponse response;
    const auto stub = v1::RatioService::NewStub(channels_[0]);
    const grpc::Status status = stub->GetRun(&context, request, &response);
    if (!status.ok()) Fail(status.error_message());
    if (response.run().positions() != static_cast<uint64_t>(tokens)) {
      Fail(absl::StrCat("sis_server has ", response.run().positions(), " of ", tokens));
    }
  }

 private:
  static std::string Address() {
    if (!absl::GetFlag(FLAGS_segments)) return "127.0.0.1:0";
    std::string folder = "/tmp/sis-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) Fail("no folder for a socket");
    return absl::StrCat("unix:", folder, "/socket");
  }

  ChildProcess process_;
  const std::string address_;
  uint64_t incarnation_ = 0;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::unique_ptr<LeasedSegment> segment_;
};

// A blocking connection that counts replies of one line.
class RedisConnection {
 public:
  explicit RedisConnection(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in server = {};
    server.sin_family = AF_INET;
    server.sin_port = htons(static_cast<uint16_t>(port));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&server), sizeof server) == 0;
  }
  ~RedisConnection() { close(socket_); }
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  bool connected() const { return connected_; }

  void Write(const std::string& commands) {
    for (size_t sent = 0; sent < commands.size();) {
      const ssize_t n = send(socket_, commands.data() + sent, commands.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) Fail("redis-server is gone");
      sent += n;
    }
  }
  // Waits for so many replies more; the last one that came.
  std::string Read(int64_t replies) {
    char buffer[1 << 14];
    while (surplus_ < replies) {
      const ssize_t n = recv(socket_, buffer, sizeof buffer, 0);
      if (n <= 0) Fail("redis-server is gone");
      for (ssize_t i = 0; i < n; ++i) {
        if (last_.ends_with('\n')) last_.clear();
        last_ += buffer[i];
        if (buffer[i] != '\n') continue;
        if (last_[0] == '-') Fail("redis-server: " + last_);
        ++surplus_;
      }
    }
    surplus_ -= replies;
    return last_;
  }

 private:
  const int socket_;
  bool connected_;
  int64_t surplus_ = 0;  // replies that came early
  std::string last_;
};

class Redis {
 public:
  explicit Redis(int port)
      : process_({"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save",
                  "", "--appendonly", "no", "--loglevel", "warning"}),
        port_(port) {
    while (!RedisConnection(port_).connected()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  const ChildProcess& process() const { return process_; }

  void Connect(int streams) {
    connections_.clear();
    for (int i = 0; i < streams; ++i) {
      connections_.push_back(std::make_unique<RedisConnection>(port_));
      if (!connections_.back()->connected()) Fail("cannot connect to redis-server");
    }
  }

  void Clear() { Call("FLUSHALL SYNC"); }

  // Keeps every connection's pipelines under way, from one thread: redis-server has one, too.
  void Send(const std::vector<Messages>& streams, std::vector<std::string> Messages::*pipelines,
            int replies_per_batch) {
    const size_t batches = (streams[0].*pipelines).size();
    for (size_t batch = 0; batch < batches + kBatchesInFlight; ++batch) {
      for (size_t i = 0; i < streams.size(); ++i) {
        if (batch >= kBatchesInFlight) connections_[i]->Read(replies_per_batch);
        if (batch < batches) connections_[i]->Write((streams[i].*pipelines)[batch]);
      }
    }
  }

  void Check(int64_t keys) {
    if (Call("DBSIZE") != absl::StrCat(":", keys, "\r\n")) Fail("redis-server lost keys");
  }

 private:
  std::string Call(const std::string& command) {
    connections_[0]->Write(command + "\r\n");
    return connections_[0]->Read(1);
  }

  ChildProcess process_;
  const int port_;
  std::vector<std::unique_ptr<RedisConnection>> connections_;
};

// --- Measuring -------------------------------------------------------------------------------

struct Measured {
  std::vector<double> tokens_per_second;
  std::vector<double> cpu_seconds;         // of the server
  std::vector<double> client_cpu_seconds;  // of this program
};

double OwnCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <typename Send>
void Measure(const ChildProcess& server, int64_t tokens, Measured& measured, Send send) {
  const double cpu_before = server.cpu_seconds();
  const double own_before = OwnCpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  send();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  measured.tokens_per_second.push_back(static_cast<double>(tokens) / seconds.count());
  measured.cpu_seconds.push_back(server.cpu_seconds() - cpu_before);
  measured.client_cpu_seconds.push_back(OwnCpuSeconds() - own_before);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// "2.10 (1.90, 2.20)"
std::string Ratios(const Measured& ours, const Measured& theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.tokens_per_second.size(); ++i) {
    ratios.push_back(ours.tokens_per_second[i] / theirs.tokens_per_second[i]);
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.2f (%.2f, %.2f)", Median(ratios),
                *std::ranges::min_element(ratios), *std::ranges::max_element(ratios));
  return text;
}

std::string Figures(const Case& c, const Measured& measured, int64_t tokens) {
  const double rate = Median(measured.tokens_per_second);
  const auto per_token = [&](const std::vector<double>& seconds) {
    return Median(seconds) / static_cast<double>(tokens) * 1e6;
  };
  char text[96];
  std::snprintf(text, sizeof text, "%6.2f %5.2f %6.3f %6.3f", rate * 1e-6,
                rate * static_cast<double>(c.bytes_per_token()) * 1e-9,
                per_token(measured.cpu_seconds), per_token(measured.client_cpu_seconds));
  return text;
}

void Run(const Case& c, Sis& sis, Redis* redis) {
  const int megabytes = absl::GetFlag(FLAGS_megabytes);
  std::vector<Messages> streams = MakeMessages(c, megabytes);
  const int64_t tokens = c.tokens(megabytes);
  sis.Connect(c.streams);
  if (absl::GetFlag(FLAGS_segments)) sis.ShareArrays(streams, megabytes);
  if (redis != nullptr) redis->Connect(c.streams);
  Measured ours, set, append;
  for (int repetition = 0; repetition < absl::GetFlag(FLAGS_repetitions); ++repetition) {
    sis.Clear(c);
    Measure(sis.process(), tokens, ours, [&] { sis.Send(streams); });
    sis.Check(tokens);
    sis.Clear(c);
    if (redis == nullptr) continue;
    redis->Clear();
    Measure(redis->process(), tokens, set,
            [&] { redis->Send(streams, &Messages::set, c.sequences()); });
    redis->Check(tokens / c.block_tokens);
    redis->Clear();
    Measure(redis->process(), tokens, append,
            [&] { redis->Send(streams, &Messages::append, c.sequences()); });
    redis->Check(int64_t{c.streams} * c.sequences());
    redis->Clear();
  }
  std::printf("%3d %5d %4d  %s", c.top_k, c.block_tokens, c.streams,
              Figures(c, ours, tokens).c_str());
  if (redis != nullptr) {
    std::printf("  %s  %s  %-20s %s", Figures(c, set, tokens).c_str(),
                Figures(c, append, tokens).c_str(), Ratios(ours, set).c_str(),
                Ratios(ours, append).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

std::vector<int> Numbers(const std::vector<std::string>& texts) {
  std::vector<int> numbers;
  for (const std::string& text : texts) numbers.push_back(std::stoi(text));
  return numbers;
}

bool OnPath(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string folder;
  for (const char* c = path == nullptr ? "" : path;; ++c) {
    if (*c != ':' && *c != '\0') {
      folder += *c;
      continue;
    }
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
    if (*c == '\0') return false;
    folder.clear();
  }
}

void Main() {
  Sis sis;
  std::unique_ptr<Redis> redis;
  if (OnPath("redis-server")) {
    redis = std::make_unique<Redis>(20000 + getpid() % 20000);
  } else {
    std::printf("redis-server is not installed (tools/setup bench): sis_server alone\n");
  }
  std::printf(
      "Mtokens/s, GB/s of arrays, and CPU time in us per token: the server's, the client's; "
      "medians.\n"
      "Ratios of tokens/s: median (least, most).\n"
      "                sis_server                   SET                          APPEND"
      "                       sis/SET              sis/APPEND\n"
      "  K block strm  Mtok/s  GB/s server client  Mtok/s  GB/s server client  "
      "Mtok/s  GB/s server client\n");
  for (const int top_k : Numbers(absl::GetFlag(FLAGS_top_k))) {
    for (const int block_tokens : Numbers(absl::GetFlag(FLAGS_block_tokens))) {
      for (const int streams : Numbers(absl::GetFlag(FLAGS_streams))) {
        Run({top_k, block_tokens, streams}, sis, redis.get());
      }
    }
  }
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Ingest beside Redis. See the head of tests/bench/ingest.cc.");
  absl::ParseCommandLine(argc, argv);
  sis::Main();
}
