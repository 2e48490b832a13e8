// How fast blocks get into the cache: sis_server beside redis-server, over loopback TCP, on the
// same cores, in turn.
//
//     ingest [--top_k=10,50] [--block_tokens=1,32,1024] [--streams=1,16,256]
//            [--megabytes=64] [--repetitions=5]
//            [--held=100000] [--appends=20000]
//
// A stream is a connection of one worker. The worker sends batches of blocks, one block of each of
// its sequences, with up to four batches under way. For Redis a batch is a pipeline of commands,
// whose values are the blocks. SET stores each block under a separate key; APPEND adds it to its
// sequence's value. sis_server checks every block, stores it for evaluation and acks; Redis stores
// bytes, with its persistence off. Both get messages that were made beforehand, so the client's
// part is writing to sockets and waiting for answers; afterwards both are asked whether they have
// it all.
//
// Last, sis_server alone: what an append of a new sequence costs it when as many sequences are held
// as the run has room for, so that each takes the place of another. --held=0 leaves that out.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "server/testing/child_process.h"
#include "tests/bench/ingest_full_cache.h"
#include "tests/bench/ingest_messages.h"
#include "tests/bench/ingest_redis.h"
#include "tests/bench/ingest_sis.h"

ABSL_FLAG(std::vector<std::string>, top_k, (std::vector<std::string>{"10", "50"}),
          "slots per position");
ABSL_FLAG(std::vector<std::string>, block_tokens, (std::vector<std::string>{"1", "32", "1024"}),
          "positions per block");
ABSL_FLAG(std::vector<std::string>, streams, (std::vector<std::string>{"1", "16", "256"}),
          "concurrent streams");
ABSL_FLAG(int, megabytes, 64, "blocks per case; an eighth of it with blocks of one token");
ABSL_FLAG(int, repetitions, 5, "of every case");
ABSL_FLAG(int, held, 100'000, "sequences held in the full cache");
ABSL_FLAG(int, appends, 20'000, "to the full cache");
ABSL_FLAG(std::string, server, "server/main/sis_server", "the program");

namespace sis {
namespace {

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
  const std::vector<Messages> streams = MakeMessages(c, megabytes);
  const int64_t tokens = c.tokens(megabytes);
  sis.Connect(c.streams);
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
  Sis sis(absl::GetFlag(FLAGS_server));
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
  if (const int held = absl::GetFlag(FLAGS_held); held > 0) {
    FullCache(sis, held, absl::GetFlag(FLAGS_appends)).Measure(absl::GetFlag(FLAGS_repetitions));
  }
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Ingest beside Redis. See the head of tests/bench/ingest.cc.");
  absl::ParseCommandLine(argc, argv);
  sis::Main();
}
