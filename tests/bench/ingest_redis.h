// redis-server in the ingest benchmark, and its clients.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/store/redis/redis_connection.h"
#include "server/testing/child_process.h"
#include "server/threads/steady_now.h"
#include "tests/bench/ingest_messages.h"

namespace sis {

class Redis {
 public:
  explicit Redis(uint16_t port)
      : process_({"redis-server", "--port", std::to_string(port), "--bind", "127.0.0.1", "--save",
                  "", "--appendonly", "no", "--loglevel", "warning"}),
        node_{"127.0.0.1", port} {
    signal(SIGPIPE, SIG_IGN);
    while (!Open().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  const ChildProcess& process() const { return process_; }

  void Connect(int streams) {
    connections_.clear();
    for (int i = 0; i < streams; ++i) connections_.push_back(Valid(Open()));
  }

  void Clear() { Call({"FLUSHALL", "SYNC"}); }

  // Keeps every connection's pipelines under way, from one thread: redis-server has one, too.
  void Send(const std::vector<Messages>& streams, int replies_per_batch) {
    const size_t batches = streams[0].set.size();
    for (size_t batch = 0; batch < batches + kBatchesInFlight; ++batch) {
      for (size_t i = 0; i < streams.size(); ++i) {
        const int due = batch >= kBatchesInFlight ? replies_per_batch : 0;
        for (int reply = 0; reply < due; ++reply) Receive(*connections_[i]);
        if (batch < batches) Write(*connections_[i], streams[i].set[batch]);
      }
    }
  }

  void Check(int64_t keys) {
    if (Call({"DBSIZE"}).integer != keys) Fail("redis-server lost keys");
  }

 private:
  static absl::Time Deadline() { return SteadyNow() + absl::Minutes(10); }
  template <typename T>
  static T Valid(absl::StatusOr<T> value) {
    if (!value.ok()) Fail("redis-server: " + std::string(value.status().message()));
    return *std::move(value);
  }
  absl::StatusOr<std::unique_ptr<RedisConnection>> Open() const {
    return RedisConnection::Open(node_, {}, Deadline());
  }
  static void Write(RedisConnection& connection, const std::string& commands) {
    const absl::Status sent = connection.Send(commands, Deadline());
    if (!sent.ok()) Fail("redis-server: " + std::string(sent.message()));
  }
  static RedisReply Receive(RedisConnection& connection) {
    RedisReply reply = Valid(connection.Receive(/*max_bytes=*/1000, Deadline()));
    if (reply.is_error()) Fail("redis-server: " + reply.text);
    return reply;
  }
  RedisReply Call(const std::vector<absl::string_view>& command) {
    Write(*connections_[0], FormatRedisCommand(command));
    return Receive(*connections_[0]);
  }

  ChildProcess process_;
  const RedisNode node_;
  std::vector<std::unique_ptr<RedisConnection>> connections_;
};

}  // namespace sis
