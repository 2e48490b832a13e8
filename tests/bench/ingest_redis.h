// redis-server in the ingest benchmark, and its clients.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/testing/child_process.h"
#include "tests/bench/ingest_messages.h"

namespace sis {

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
  // Waits for `replies` more replies. Returns the last one.
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
  void Send(const std::vector<Messages>& streams, int replies_per_batch) {
    const size_t batches = streams[0].set.size();
    for (size_t batch = 0; batch < batches + kBatchesInFlight; ++batch) {
      for (size_t i = 0; i < streams.size(); ++i) {
        if (batch >= kBatchesInFlight) connections_[i]->Read(replies_per_batch);
        if (batch < batches) connections_[i]->Write(streams[i].set[batch]);
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

}  // namespace sis
