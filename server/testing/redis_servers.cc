#include "server/testing/redis_servers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/store/redis/redis_connection.h"
#include "server/store/redis/redis_nodes.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "redis-server: " << what << '\n';
  std::abort();
}

template <typename Condition>
void Await(const std::string& what, const Condition& condition) {
  const absl::Time end = SteadyNow() + kPatience;
  while (!condition()) {
    if (SteadyNow() > end) Fail("no " + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Returns different ports that are free now, below the ports that the system gives to clients. So
// they stay free until a node takes them, and while it is down. Holds each port until it has all.
std::vector<int> FreePorts(int count) {
  std::random_device random;
  std::vector<int> sockets, ports;
  while (std::ssize(ports) < count) {
    const int port = std::uniform_int_distribution(11'000, 32'000)(random);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
    const auto* any_address = reinterpret_cast<const sockaddr*>(&address);
    if (bind(sockets.back(), any_address, sizeof(address)) == 0) ports.push_back(port);
  }
  for (const int socket : sockets) close(socket);
  return ports;
}

}  // namespace

RedisServers::RedisServers(Options options) : RedisServers(0, 0, std::move(options)) {}

RedisServers::RedisServers(int primaries, int replicas, Options options)
    : options_(std::move(options)) {
  signal(SIGPIPE, SIG_IGN);
  if (mkdtemp(folder_.data()) == nullptr) Fail("no folder");
  const bool cluster = primaries > 0;
  if (cluster) {
    const Options more = {"--cluster-enabled",
                          "yes",
                          "--cluster-node-timeout",
                          "1000",
                          "--cluster-replica-validity-factor",
                          "0"};
    options_.insert(options_.end(), more.begin(), more.end());
  }
  const int count = cluster ? primaries + replicas : 1;
  const std::vector<int> ports = FreePorts(2 * count);
  for (int i = 0; i < count; ++i) {
    const auto port = static_cast<uint16_t>(ports[2 * i]);
    nodes_.push_back({.address = {"127.0.0.1", port}, .bus_port = ports[2 * i + 1]});
    Start(i);
  }
  if (!cluster) return;

  for (int i = 0; i < primaries; ++i) {
    Ask(i, {"CLUSTER", "ADDSLOTSRANGE", absl::StrCat(kRedisSlots * i / primaries),
            absl::StrCat(kRedisSlots * (i + 1) / primaries - 1)});
    Ask(i, {"CLUSTER", "SET-CONFIG-EPOCH", absl::StrCat(i + 1)});
  }
  for (int i = 1; i < count; ++i) {
    Ask(0, {"CLUSTER", "MEET", "127.0.0.1", absl::StrCat(nodes_[i].address.port),
            absl::StrCat(nodes_[i].bus_port)});
  }
  const std::string known = absl::StrCat("cluster_known_nodes:", count, "\r\n");
  for (int i = 0; i < count; ++i) {
    Await("meeting", [&] { return absl::StrContains(Ask(i, {"CLUSTER", "INFO"}).text, known); });
  }
  for (int i = primaries; i < count; ++i) {
    const std::string id = Ask(i - primaries, {"CLUSTER", "MYID"}).text;
    Await("replica", [&] { return Ask(i, {"CLUSTER", "REPLICATE", id}).text == "OK"; });
  }
  for (int i = 0; i < count; ++i) {
    Await("cluster", [&] {
      return absl::StrContains(Ask(i, {"CLUSTER", "INFO"}).text, "cluster_state:ok");
    });
    if (i >= primaries) {
      Await("link to a primary", [&] {
        return absl::StrContains(Ask(i, {"INFO", "replication"}).text, "master_link_status:up");
      });
    }
    // Nodes meet in less time if the timeout is short, but they may answer late on a busy machine.
    Ask(i, {"CONFIG", "SET", "cluster-node-timeout", "15000"});
  }
}

RedisServers::~RedisServers() {
  nodes_.clear();
  std::filesystem::remove_all(folder_);
}

std::string RedisServers::address(const std::string& options) const {
  std::string address = "redis:/";
  for (const Node& node : nodes_) {
    absl::StrAppend(&address, &node == &nodes_[0] ? "/" : ",", ToString(node.address));
  }
  return address + options;
}

void RedisServers::Start(size_t i) {
  const Node& node = nodes_[i];
  const std::string folder = absl::StrCat(folder_, "/", i);
  std::filesystem::create_directory(folder);
  std::vector<std::string> arguments = {"redis-server",
                                        "--port",
                                        absl::StrCat(node.address.port),
                                        "--cluster-port",
                                        absl::StrCat(node.bus_port),
                                        "--bind",
                                        "127.0.0.1",
                                        "--dir",
                                        folder,
                                        "--logfile",
                                        folder + "/log",
                                        "--save",
                                        ""};
  arguments.insert(arguments.end(), options_.begin(), options_.end());
  nodes_[i].process = std::make_unique<ChildProcess>(arguments);
  Await("answer", [&] {
    const auto connection = RedisConnection::Open(node.address, {}, SteadyNow() + kPatience);
    if (!connection.ok()) return false;
    const absl::Time end = SteadyNow() + kPatience;
    if (!(*connection)->Send("*1\r\n$4\r\nPING\r\n", end).ok()) return false;
    const absl::StatusOr<RedisReply> reply = (*connection)->Receive(1000, end);
    return reply.ok() && !absl::StartsWith(reply->text, "LOADING");
  });
}

RedisReply RedisServers::Ask(size_t i, const std::vector<std::string>& command) const {
  const absl::Time end = SteadyNow() + kPatience;
  const auto connection = RedisConnection::Open(nodes_[i].address, {}, end);
  if (!connection.ok()) Fail(std::string(connection.status().message()));
  const std::vector<absl::string_view> arguments(command.begin(), command.end());
  if (!(*connection)->Send(FormatRedisCommand(arguments), end).ok()) Fail("gone");
  absl::StatusOr<RedisReply> reply = (*connection)->Receive(size_t{1} << 24, end);
  if (!reply.ok()) Fail(std::string(reply.status().message()));
  return *std::move(reply);
}

}  // namespace sis
