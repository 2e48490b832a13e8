#include "server/store/redis/redis_nodes.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr size_t kMaxIdlePerNode = 64;
// The first try again is at once, as a connection may be old, or a slot elsewhere.
constexpr absl::Duration kPauseGrowth = absl::Milliseconds(10);
constexpr absl::Duration kMaxPause = absl::Milliseconds(200);
// Errors of a node that starts, fails over, or moves slots.
constexpr absl::string_view kPassing[] = {"TRYAGAIN",   "CLUSTERDOWN", "LOADING",
                                          "MASTERDOWN", "BUSY",        "READONLY"};

absl::Status At(const RedisNode& node, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("redis ", ToString(node), ": ", status.message()));
}

// "MOVED 3999 host:port"; without a host, the node that redirects.
std::optional<RedisNode> ParseRedirection(absl::string_view text, RedisNode node) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  if (words.size() != 3 || !ParseRedisNode(words[2], node)) return std::nullopt;
  return node;
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

absl::StatusOr<RedisPrimaries> ParseClusterSlots(const RedisReply& reply, const RedisNode& asked) {
  RedisPrimaries primaries;
  for (const RedisReply& range : reply.elements) {
    // The first slot, the last one, the primary, and its replicas.
    if (range.elements.size() < 3 || range.elements[2].elements.size() < 2) {
      return absl::UnavailableError("a malformed reply to CLUSTER SLOTS");
    }
    const RedisReply &host = range.elements[2].elements[0], &port = range.elements[2].elements[1];
    // Nil and "?" stand for a node that doesn't know its own address.
    RedisNode& node = primaries[range.elements[1].integer] = asked;
    if (!ParseRedisNode(absl::StrCat(host.text == "?" ? "" : host.text, ":", port.integer), node)) {
      return absl::UnavailableError("a malformed reply to CLUSTER SLOTS");
    }
  }
  if (primaries.empty()) return absl::UnavailableError("a cluster without slots");
  return primaries;
}

absl::Time RedisNodes::Deadline() const { return SteadyNow() + address_.timeout; }

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisNodes::Take(const RedisNode& node,
                                                                  absl::Time deadline) {
  {
    WriterLock lock(mutex_);
    auto& idle = idle_[node];
    if (!idle.empty()) {
      std::unique_ptr<RedisConnection> connection = std::move(idle.back());
      idle.pop_back();
      return connection;
    }
  }
  // Leaves time for other nodes.
  return RedisConnection::Open(node, address_,
                               std::min(deadline, SteadyNow() + address_.timeout / 2));
}

std::vector<absl::StatusOr<RedisReply>> RedisNodes::Send(const RedisNode& node,
                                                         std::span<const Pending> commands,
                                                         absl::Time deadline) {
  absl::StatusOr<std::unique_ptr<RedisConnection>> connection = Take(node, deadline);
  std::string bytes;
  for (const Pending& pending : commands) {
    if (pending.asking) bytes += FormatRedisCommand({"ASKING"});
    bytes += FormatRedisCommand(pending.command->arguments);
  }
  absl::Status status = connection.status();
  if (status.ok()) status = (*connection)->Send(bytes, deadline);
  std::vector<absl::StatusOr<RedisReply>> replies;
  for (const Pending& pending : commands) {
    for (int left = pending.asking ? 2 : 1; left > 0 && status.ok(); --left) {
      absl::StatusOr<RedisReply> reply =
          (*connection)->Receive(pending.command->max_reply_bytes, deadline);
      status = reply.status();
      if (status.ok() && left == 1) replies.push_back(std::move(reply));
    }
  }
  WriterLock lock(mutex_);
  auto& idle = idle_[node];
  if (!status.ok()) {
    stale_ = true;
    idle.clear();
    replies.resize(commands.size(), At(node, status));
  } else if (idle.size() < kMaxIdlePerNode) {
    idle.push_back(*std::move(connection));
  }
  return replies;
}

std::optional<RedisNode> RedisNodes::NodeOf(absl::string_view key) const {
  ReaderLock lock(mutex_);
  const auto range = primaries_.lower_bound(RedisSlot(key));
  if (range == primaries_.end()) return std::nullopt;
  return range->second;
}

std::vector<absl::StatusOr<RedisReply>> RedisNodes::CallAll(
    std::span<const RedisCommand> commands) {
  const absl::Time deadline = Deadline();
  std::vector<absl::StatusOr<RedisReply>> results(commands.size());
  std::vector<Pending> all;
  for (size_t i = 0; i < commands.size(); ++i) {
    all.push_back({.command = &commands[i], .result = &results[i], .node = commands[i].node});
  }
  for (absl::Duration pause;; pause = std::min(2 * pause + kPauseGrowth, kMaxPause)) {
    absl::Status nowhere = stale_.exchange(false) ? Refresh(deadline) : absl::OkStatus();
    nowhere.Update(absl::UnavailableError("redis: no node serves this slot"));
    std::map<RedisNode, std::vector<Pending>> by_node;
    std::vector<Pending> again;
    for (const Pending& pending : all) {
      const auto node = pending.node.has_value() ? pending.node : NodeOf(pending.command->key);
      if (node.has_value()) {
        by_node[*node].push_back(pending);
      } else {
        *pending.result = nowhere;
        again.push_back(pending);
      }
    }
    for (auto& [node, sent] : by_node) {
      std::vector<absl::StatusOr<RedisReply>> replies = Send(node, sent, deadline);
      for (size_t i = 0; i < sent.size(); ++i) {
        if (!Finish(node, std::move(replies[i]), sent[i])) again.push_back(sent[i]);
      }
    }
    if (again.empty() || SteadyNow() + pause >= deadline) return results;
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(pause));
    all = std::move(again);
  }
}

bool RedisNodes::Finish(const RedisNode& node, absl::StatusOr<RedisReply> reply, Pending& pending) {
  pending.node = pending.command->node;
  pending.asking = false;
  if (!reply.ok() || !reply->is_error()) {
    *pending.result = std::move(reply);
    return pending.result->ok();
  }
  *pending.result = At(node, RedisError(reply->text));
  const absl::string_view code = RedisErrorCode(reply->text);
  pending.asking = code == "ASK";
  if (pending.asking || code == "MOVED") {
    pending.node = ParseRedirection(reply->text, node);
  } else if (absl::c_find(kPassing, code) == std::end(kPassing)) {
    return true;
  }
  if (!pending.asking) stale_ = true;
  return false;
}

absl::StatusOr<RedisPrimaries> RedisNodes::AskPrimaries(const RedisNode& node,
                                                        absl::Time deadline) {
  const RedisCommand slots{.arguments = {"CLUSTER", "SLOTS"}}, role{.arguments = {"ROLE"}};
  const Pending commands[] = {{.command = &slots}, {.command = &role}};
  const std::vector<absl::StatusOr<RedisReply>> replies = Send(node, commands, deadline);
  for (const absl::StatusOr<RedisReply>& reply : replies) {
    if (!reply.ok()) return reply.status();
  }
  const RedisReply &found = *replies[0], &state = *replies[1];
  absl::StatusOr<RedisPrimaries> primaries = RedisPrimaries{{kRedisSlots - 1, node}};
  if (!found.is_error()) {
    primaries = ParseClusterSlots(found, node);
  } else if (RedisErrorCode(found.text) != "ERR") {
    primaries = RedisError(found.text);
  } else if (!state.elements.empty() && state.elements[0].text == "slave") {
    primaries = RedisError("READONLY");
  }
  return primaries.ok() ? primaries : At(node, primaries.status());
}

absl::Status RedisNodes::Refresh(absl::Time deadline) {
  std::set<RedisNode> nodes(address_.nodes.begin(), address_.nodes.end());
  {
    ReaderLock lock(mutex_);
    for (const auto& [slot, node] : primaries_) nodes.insert(node);
  }
  absl::Status problem;
  size_t left = nodes.size();
  for (const RedisNode& node : nodes) {
    // Leaves time for the nodes that follow.
    const absl::Time now = SteadyNow();
    absl::StatusOr<RedisPrimaries> primaries = AskPrimaries(node, now + (deadline - now) / left--);
    if (primaries.ok()) {
      WriterLock lock(mutex_);
      primaries_ = *std::move(primaries);
      std::erase_if(idle_, [&](const auto& idle) { return !nodes.contains(idle.first); });
      return absl::OkStatus();
    }
    problem.Update(primaries.status());
  }
  stale_ = true;
  return problem;
}

absl::StatusOr<std::set<RedisNode>> RedisNodes::Primaries() {
  if (absl::Status status = Refresh(Deadline()); !status.ok()) return status;
  std::set<RedisNode> primaries;
  ReaderLock lock(mutex_);
  for (const auto& [slot, node] : primaries_) primaries.insert(node);
  return primaries;
}

}  // namespace sis
