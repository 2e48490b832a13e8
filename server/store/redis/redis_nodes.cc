#include "server/store/redis/redis_nodes.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr size_t kMaxIdlePerNode = 64;
constexpr size_t kMaxTopologyBytes = size_t{1} << 20;
// Redirections that a command follows at once.
constexpr int kQuickAttempts = 4;
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kMaxPause = absl::Milliseconds(200);

absl::string_view FirstWord(absl::string_view text) { return text.substr(0, text.find(' ')); }

absl::Status At(const RedisNode& node, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("redis ", ToString(node), ": ", status.message()));
}

bool SetPort(int64_t port, RedisNode& node) {
  node.port = static_cast<uint16_t>(port);
  return port > 0 && port == node.port;
}

// "MOVED 3999 host:port"; without a host, the node that redirects.
bool ParseRedirection(absl::string_view text, const RedisNode& from, RedisNode& to) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  const size_t colon = text.rfind(':');
  int64_t port = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(text.substr(colon + 1), &port)) return false;
  to.host = std::string(words[2].substr(0, words[2].rfind(':')));
  if (to.host.empty()) to.host = from.host;
  return SetPort(port, to);
}

bool ParseNode(const RedisReply& reply, const RedisNode& asked, RedisNode& node) {
  if (reply.elements.size() < 2) return false;
  // Nil and "?" stand for a node that doesn't know its own address.
  node.host = reply.elements[0].text;
  if (node.host.empty() || node.host == "?") node.host = asked.host;
  return SetPort(reply.elements[1].integer, node);
}

}  // namespace

// CRC16-CCITT with the polynomial 0x1021.
int RedisSlot(absl::string_view key) {
  uint32_t crc = 0;
  for (const char byte : key) {
    crc ^= uint32_t{static_cast<unsigned char>(byte)} << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
  }
  return static_cast<int>((crc & 0xffff) % kRedisSlots);
}

absl::Status RedisError(absl::string_view text) {
  const std::string shown = absl::CHexEscape(text.substr(0, 200));
  const absl::string_view code = FirstWord(text);
  if (code == "OOM") {
    return absl::ResourceExhaustedError(absl::StrCat("maxmemory is reached: ", shown));
  }
  if (code == "WRONGTYPE") {
    return absl::DataLossError(absl::StrCat("another program wrote to this key: ", shown));
  }
  const char* const meaning = code == "NOAUTH" || code == "WRONGPASS" || code == "NOPERM"
                                  ? "refuses user or password: "
                              : code == "READONLY"    ? "is a read-only replica: "
                              : code == "LOADING"     ? "is still loading its data: "
                              : code == "MISCONF"     ? "cannot write to its disk: "
                              : code == "CLUSTERDOWN" ? "the cluster is down: "
                                                      : "";
  return absl::UnavailableError(absl::StrCat(meaning, shown));
}

absl::StatusOr<RedisTopology> ParseClusterSlots(const RedisReply& reply, const RedisNode& asked) {
  const absl::Status malformed = absl::UnavailableError("a malformed reply to CLUSTER SLOTS");
  RedisTopology topology;
  for (const RedisReply& range : reply.elements) {
    if (range.elements.size() < 3) return malformed;
    const int64_t first = range.elements[0].integer, last = range.elements[1].integer;
    if (first < 0 || last < first || last >= kRedisSlots) return malformed;
    for (size_t i = 2; i < range.elements.size(); ++i) {
      RedisNode& node = topology.nodes.emplace_back();
      if (!ParseNode(range.elements[i], asked, node)) return malformed;
      if (i == 2) topology.slots[static_cast<int>(last)] = {static_cast<int>(first), node};
    }
  }
  if (topology.slots.empty()) return absl::UnavailableError("a cluster without slots");
  return topology;
}

absl::Time RedisNodes::Deadline() const { return SteadyNow() + address_.timeout; }

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisNodes::Take(const RedisNode& node,
                                                                  absl::Time deadline) {
  for (;;) {
    std::unique_ptr<RedisConnection> connection;
    {
      WriterLock lock(mutex_);
      auto& idle = idle_[node];
      if (idle.empty()) break;
      connection = std::move(idle.back());
      idle.pop_back();
    }
    if (connection->IsQuiet()) return connection;
  }
  // Leaves time for other nodes.
  return RedisConnection::Open(node, address_,
                               std::min(deadline, SteadyNow() + address_.timeout / 2));
}

absl::StatusOr<std::vector<RedisReply>> RedisNodes::Send(
    const RedisNode& node, std::span<const RedisCommand* const> commands, absl::Time deadline) {
  std::string bytes;
  for (const RedisCommand* command : commands) bytes += FormatRedisCommand(command->arguments);
  std::vector<RedisReply> replies;
  absl::StatusOr<std::unique_ptr<RedisConnection>> connection = Take(node, deadline);
  absl::Status status = connection.status();
  if (status.ok()) status = (*connection)->Send(bytes, deadline);
  while (status.ok() && replies.size() < commands.size()) {
    const size_t max_bytes = commands[replies.size()]->max_reply_bytes;
    absl::StatusOr<RedisReply> reply = (*connection)->Receive(max_bytes, deadline);
    status = reply.status();
    if (status.ok()) replies.push_back(*std::move(reply));
  }
  WriterLock lock(mutex_);
  auto& idle = idle_[node];
  if (!status.ok()) {
    stale_ = true;
    idle.clear();
    return At(node, status);
  }
  if (idle.size() < kMaxIdlePerNode) idle.push_back(*std::move(connection));
  return replies;
}

absl::StatusOr<RedisReply> RedisNodes::Ask(const RedisNode& node, const RedisCommand& command,
                                           absl::Time deadline) {
  const RedisCommand* const commands[] = {&command};
  absl::StatusOr<std::vector<RedisReply>> replies = Send(node, commands, deadline);
  if (!replies.ok()) return replies.status();
  RedisReply& reply = replies->front();
  if (reply.is_error()) return At(node, RedisError(reply.text));
  return std::move(reply);
}

absl::StatusOr<RedisNode> RedisNodes::NodeOf(absl::string_view key, absl::Time deadline) {
  absl::Status problem;
  if (stale_.exchange(false)) problem = Refresh(deadline);
  problem.Update(absl::UnavailableError("redis: no node serves this slot"));
  const int slot = RedisSlot(key);
  ReaderLock lock(mutex_);
  const auto range = topology_.slots.lower_bound(slot);
  if (range == topology_.slots.end() || range->second.first > slot) return problem;
  return range->second.second;
}

absl::StatusOr<RedisReply> RedisNodes::Call(const RedisCommand& command, absl::Time deadline) {
  const RedisCommand asking{.arguments = {"ASKING"}};
  absl::Status problem;
  std::optional<RedisNode> redirected;
  std::vector<const RedisCommand*> commands = {&command};
  absl::Duration pause = kFirstPause;
  for (int attempt = 1;; ++attempt) {
    bool wait = attempt >= kQuickAttempts;
    absl::StatusOr<RedisNode> node = NodeOf(command.key, deadline);
    if (redirected.has_value()) node = *std::exchange(redirected, std::nullopt);
    absl::StatusOr<std::vector<RedisReply>> replies =
        node.ok() ? Send(*node, commands, deadline) : node.status();
    commands = {&command};
    if (!replies.ok()) {
      stale_ = wait = true;
      // The error of a node says more than that the time was over.
      if (problem.ok() || SteadyNow() < deadline) problem = replies.status();
    } else if (RedisReply& reply = replies->back(); !reply.is_error()) {
      return std::move(reply);
    } else {
      const absl::string_view code = FirstWord(reply.text);
      problem = At(*node, RedisError(reply.text));
      RedisNode to;
      if ((code == "MOVED" || code == "ASK") && ParseRedirection(reply.text, *node, to)) {
        redirected = to;
        if (code == "MOVED") stale_ = true;
        if (code == "ASK") commands = {&asking, &command};
      } else if (code == "TRYAGAIN" || code == "CLUSTERDOWN" || code == "LOADING" ||
                 code == "MASTERDOWN" || code == "BUSY" || code == "READONLY") {
        stale_ = wait = true;
      } else {
        return problem;
      }
    }
    if (SteadyNow() + (wait ? pause : absl::ZeroDuration()) >= deadline) return problem;
    if (!wait) continue;
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(pause));
    pause = std::min(2 * pause, kMaxPause);
  }
}

std::vector<absl::StatusOr<RedisReply>> RedisNodes::CallAll(std::span<const RedisCommand> commands,
                                                            absl::Time deadline) {
  std::map<RedisNode, std::vector<const RedisCommand*>> by_node;
  for (const RedisCommand& command : commands) {
    const absl::StatusOr<RedisNode> node = NodeOf(command.key, deadline);
    if (node.ok()) by_node[*node].push_back(&command);
  }
  std::vector<absl::StatusOr<RedisReply>> results(commands.size());
  for (const auto& [node, own] : by_node) {
    absl::StatusOr<std::vector<RedisReply>> replies = Send(node, own, deadline);
    for (size_t i = 0; replies.ok() && i < own.size(); ++i) {
      if (!(*replies)[i].is_error()) results[own[i] - commands.data()] = std::move((*replies)[i]);
    }
  }
  for (size_t i = 0; i < commands.size(); ++i) {
    if (!results[i].ok()) results[i] = Call(commands[i], deadline);
  }
  return results;
}

absl::StatusOr<RedisTopology> RedisNodes::AskTopology(const RedisNode& node, absl::Time deadline,
                                                      bool& is_primary) {
  const RedisCommand slots{.arguments = {"CLUSTER", "SLOTS"}, .max_reply_bytes = kMaxTopologyBytes};
  const RedisCommand role{.arguments = {"ROLE"}, .max_reply_bytes = kMaxTopologyBytes};
  const RedisCommand* const commands[] = {&slots, &role};
  const absl::StatusOr<std::vector<RedisReply>> replies = Send(node, commands, deadline);
  if (!replies.ok()) return replies.status();
  const RedisReply& found = replies->front();
  is_primary = true;
  if (!found.is_error()) {
    absl::StatusOr<RedisTopology> topology = ParseClusterSlots(found, node);
    return topology.ok() ? topology : At(node, topology.status());
  }
  if (FirstWord(found.text) != "ERR") return At(node, RedisError(found.text));
  const std::vector<RedisReply>& state = replies->back().elements;
  is_primary = state.empty() || state[0].text != "slave";
  return RedisTopology{.slots = {{kRedisSlots - 1, {0, node}}}, .nodes = {node}};
}

absl::Status RedisNodes::Refresh(absl::Time deadline) {
  std::vector<RedisNode> nodes;
  {
    ReaderLock lock(mutex_);
    nodes = topology_.nodes;
  }
  nodes.insert(nodes.end(), address_.nodes.begin(), address_.nodes.end());
  absl::Status problem;
  std::optional<RedisTopology> found;
  bool is_primary = false;
  for (size_t i = 0; i < nodes.size() && !is_primary; ++i) {
    // Leaves time for the nodes that follow.
    const absl::Time now = SteadyNow();
    absl::StatusOr<RedisTopology> topology =
        AskTopology(nodes[i], now + (deadline - now) / (nodes.size() - i), is_primary);
    if (!topology.ok()) {
      problem.Update(topology.status());
      is_primary = false;
    } else if (is_primary || !found.has_value()) {
      found = *std::move(topology);
    }
  }
  if (!found.has_value()) {
    stale_ = true;
    return problem;
  }
  WriterLock lock(mutex_);
  topology_ = *std::move(found);
  const std::vector<RedisNode>& known = topology_.nodes;
  std::erase_if(idle_, [&](const auto& node) {
    return std::find(known.begin(), known.end(), node.first) == known.end();
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RedisNode>> RedisNodes::Primaries(absl::Time deadline) {
  if (absl::Status status = Refresh(deadline); !status.ok()) return status;
  std::vector<RedisNode> primaries;
  ReaderLock lock(mutex_);
  for (const auto& [last, range] : topology_.slots) {
    const RedisNode& node = range.second;
    if (std::find(primaries.begin(), primaries.end(), node) == primaries.end()) {
      primaries.push_back(node);
    }
  }
  return primaries;
}

}  // namespace sis
