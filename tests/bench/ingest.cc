// How fast blocks get into the cache: sis_server beside redis-server and an echo by gRPC alone,
// over loopback TCP, on the same cores, in turn.
//
//     ingest [--top_k=10,50] [--block_tokens=1,32,1024] [--streams=1,16,256]
//            [--megabytes=64] [--repetitions=5]
//
// A stream is a connection of one worker. The worker sends batches of blocks, one block of each of
// its sequences, with up to four batches under way. For Redis a batch is a pipeline of commands:
// SET stores each block under a separate key. sis_server checks every block, stores it for
// evaluation, and acks. Redis stores bytes, without persistence. The echo stores nothing. All get
// messages that were made beforehand, so the client's part is writing to sockets and waiting for
// answers. Afterwards sis_server and Redis are asked whether they have everything.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "server/testing/child_process.h"
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

namespace sis {
namespace {

struct Measured {
  std::vector<double> tokens_per_second;
  std::vector<double> cpu_seconds;  // of the server
};

template <typename Send>
void Measure(const ChildProcess& server, int64_t tokens, Measured& measured, Send send) {
  const double cpu_before = server.cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  send();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  measured.tokens_per_second.push_back(static_cast<double>(tokens) / seconds.count());
  measured.cpu_seconds.push_back(server.cpu_seconds() - cpu_before);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Print(const Case& c, const Measured& measured, int64_t tokens) {
  const double rate = Median(measured.tokens_per_second);
  std::printf("  %6.2f %5.2f %6.3f", rate * 1e-6,
              rate * static_cast<double>(c.bytes_per_token()) * 1e-9,
              Median(measured.cpu_seconds) / static_cast<double>(tokens) * 1e6);
}

void PrintRatio(const std::vector<double>& ratios) {
  std::printf("  %.2f (%.2f, %.2f)", Median(ratios), *std::ranges::min_element(ratios),
              *std::ranges::max_element(ratios));
}

void Run(const Case& c, Sis& sis, Redis& redis) {
  const int megabytes = absl::GetFlag(FLAGS_megabytes);
  const std::vector<Messages> streams = MakeMessages(c, megabytes);
  const int64_t tokens = c.tokens(megabytes);
  sis.Connect(c.streams);
  redis.Connect(c.streams);
  Echo echo(c);
  Measured ours, floor, theirs;
  std::vector<double> ratios, floor_ratios;
  for (int repetition = 0; repetition < absl::GetFlag(FLAGS_repetitions); ++repetition) {
    sis.Clear(c);
    Measure(sis.process(), tokens, ours, [&] { sis.Send(streams); });
    sis.Check(tokens);
    sis.Clear(c);
    Measure(echo.process(), tokens, floor, [&] { echo.Send(streams); });
    Measure(redis.process(), tokens, theirs, [&] { redis.Send(streams, c.sequences()); });
    redis.Check(tokens / c.block_tokens);
    redis.Clear();
    ratios.push_back(ours.tokens_per_second.back() / theirs.tokens_per_second.back());
    floor_ratios.push_back(floor.tokens_per_second.back() / theirs.tokens_per_second.back());
  }
  std::printf("%3d %5d %4d", c.top_k, c.block_tokens, c.streams);
  Print(c, ours, tokens);
  Print(c, floor, tokens);
  Print(c, theirs, tokens);
  PrintRatio(ratios);
  PrintRatio(floor_ratios);
  std::printf("\n");
  std::fflush(stdout);
}

std::vector<int> Numbers(const std::vector<std::string>& texts) {
  std::vector<int> numbers;
  for (const std::string& text : texts) numbers.push_back(std::stoi(text));
  return numbers;
}

void Main() {
  Sis sis;
  Redis redis(static_cast<uint16_t>(20000 + getpid() % 20000));
  std::printf(
      "Mtokens/s, GB/s of arrays, and the server's CPU time in us per token: medians.\n"
      "Ratio of tokens/s: median (least, most).\n"
      "                sis_server            echo                  SET\n"
      "  K block strm  Mtok/s  GB/s server  Mtok/s  GB/s server  Mtok/s  GB/s server"
      "  sis/SET            echo/SET\n");
  for (const int top_k : Numbers(absl::GetFlag(FLAGS_top_k))) {
    for (const int block_tokens : Numbers(absl::GetFlag(FLAGS_block_tokens))) {
      for (const int streams : Numbers(absl::GetFlag(FLAGS_streams))) {
        Run({top_k, block_tokens, streams}, sis, redis);
      }
    }
  }
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Ingest beside Redis and an echo. See the head of tests/bench/ingest.cc.");
  absl::ParseCommandLine(argc, argv);
  sis::Main();
}
