#include "server/store/redis/redis_nodes.h"

#include <openssl/sha.h>

#include <algorithm>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr size_t kMaxIdlePerNode = 64;
constexpr size_t kMaxNodes = 1000;
// Redirections that a command follows at once.
constexpr int kQuickAttempts = 4;
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kMaxPause = absl::Milliseconds(200);

absl::string_view FirstWord(absl::string_view text) { return text.substr(0, text.find(' ')); }

absl::Status At(const RedisNode& node, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("redis ", ToString(node), ": ", status.message()));
}

bool ParsePort(absl::string_view text, uint16_t& port) {
  uint32_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number == 0 || number > UINT16_MAX) return false;
  port = static_cast<uint16_t>(number);
  return true;
}

// "MOVED 3999 host:port"; without a host, the node that redirects.
bool ParseRedirection(absl::string_view text, const RedisNode& from, RedisNode& to) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  const size_t colon = text.rfind(':');
  if (words.size() != 3 || colon == absl::string_view::npos) return false;
  to.host = std::string(words[2].substr(0, words[2].rfind(':')));
  if (to.host.empty()) to.host = from.host;
  return ParsePort(text.substr(colon + 1), to.port);
}

bool ParseNode(const RedisReply& reply, const RedisNode& asked, RedisNode& node) {
  if (!reply.is_array() || reply.elements.size() < 2) return false;
  const RedisReply& host = reply.elements[0];
  const RedisReply& port = reply.elements[1];
  if (host.kind != RedisReply::Kind::kNil && !host.is_text()) return false;
  // Nil and "?" stand for a node that doesn't know its own address.
  node.host = host.text.empty() || host.text == "?" ? asked.host : host.text;
  if (!port.is_integer() || port.integer < 1 || port.integer > UINT16_MAX) return false;
  node.port = static_cast<uint16_t>(port.integer);
  return true;
}

std::string HexSha1(absl::string_view text) {
  unsigned char digest[SHA_DIGEST_LENGTH];
  SHA1(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), sizeof(digest)});
}

// The specification's: CRC16-CCITT with the polynomial 0x1021.
int Crc16(absl::string_view bytes) {
  uint32_t crc = 0;
  for (const char byte : bytes) {
    crc ^= uint32_t{static_cast<unsigned char>(byte)} << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
  }
  return static_cast<int>(crc & 0xffff);
}

}  // namespace

int RedisSlot(absl::string_view key) {
  if (const size_t open = key.find('{'); open != absl::string_view::npos) {
    const size_t close = key.find('}', open);
    if (close != absl::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return Crc16(key) % kRedisSlots;
}

RedisScript::RedisScript(absl::string_view text) : text(text), digest(HexSha1(text)) {}

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
  if (!reply.is_array()) return malformed;
  RedisTopology topology;
  topology.primary_of_slot.fill(-1);
  std::map<RedisNode, int16_t> indices;
  for (const RedisReply& range : reply.elements) {
    if (!range.is_array() || range.elements.size() < 3) return malformed;
    const RedisReply& first = range.elements[0];
    const RedisReply& last = range.elements[1];
    if (!first.is_integer() || !last.is_integer() || first.integer < 0 ||
        last.integer < first.integer || last.integer >= kRedisSlots) {
      return malformed;
    }
    for (size_t i = 2; i < range.elements.size(); ++i) {
      RedisNode node;
      if (!ParseNode(range.elements[i], asked, node)) return malformed;
      if (i > 2) {
        topology.replicas.push_back(node);
        if (topology.replicas.size() > kMaxNodes) return malformed;
        continue;
      }
      const auto [at, is_new] =
          indices.emplace(node, static_cast<int16_t>(topology.primaries.size()));
      if (is_new) topology.primaries.push_back(node);
      if (topology.primaries.size() > kMaxNodes) return malformed;
      std::fill(topology.primary_of_slot.begin() + first.integer,
                topology.primary_of_slot.begin() + last.integer + 1, at->second);
    }
  }
  if (topology.primaries.empty()) return absl::UnavailableError("a cluster without slots");
  return topology;
}

struct RedisNodes::Pending {
  const RedisCommand* command = nullptr;
  absl::StatusOr<RedisReply> result = absl::UnavailableError("redis: no node answered in time");
  bool done = false;
  // A node answered with an error.
  bool refused = false;
  // Send the text of the script.
  bool with_text = false;
  // The node that the last reply named.
  std::optional<RedisNode> redirected = {};
  bool asking = false;
};

absl::Time RedisNodes::Deadline() const { return SteadyNow() + address_.timeout; }

std::shared_ptr<const RedisTopology> RedisNodes::topology() const {
  ReaderLock lock(mutex_);
  return topology_;
}

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

void RedisNodes::GiveBack(const RedisNode& node, std::unique_ptr<RedisConnection> connection) {
  WriterLock lock(mutex_);
  auto& idle = idle_[node];
  if (idle.size() < kMaxIdlePerNode) idle.push_back(std::move(connection));
}

absl::Status RedisNodes::Send(const RedisNode& node, const std::string& bytes,
                              std::span<const size_t> max_reply_bytes, absl::Time deadline,
                              std::vector<RedisReply>& replies) {
  absl::StatusOr<std::unique_ptr<RedisConnection>> connection = Take(node, deadline);
  absl::Status status = connection.status();
  if (status.ok()) status = (*connection)->Send(bytes, deadline);
  for (size_t i = 0; i < max_reply_bytes.size() && status.ok(); ++i) {
    absl::StatusOr<RedisReply> reply = (*connection)->Receive(max_reply_bytes[i], deadline);
    status = reply.status();
    if (status.ok()) replies.push_back(*std::move(reply));
  }
  if (status.ok()) {
    GiveBack(node, *std::move(connection));
  } else {
    stale_ = true;
    WriterLock lock(mutex_);
    idle_.erase(node);
  }
  return status.ok() ? status : At(node, status);
}

absl::Status RedisNodes::Ask(const RedisNode& node, std::span<const RedisCommand> commands,
                             absl::Time deadline, std::vector<RedisReply>& replies) {
  std::string bytes;
  std::vector<size_t> max_reply_bytes;
  for (const RedisCommand& command : commands) {
    bytes += FormatRedisCommand(command.arguments);
    max_reply_bytes.push_back(command.max_reply_bytes);
  }
  return Send(node, bytes, max_reply_bytes, deadline, replies);
}

bool RedisNodes::CallNode(const RedisNode& node, std::span<Pending* const> commands,
                          absl::Time deadline) {
  std::string bytes;
  std::vector<size_t> max_reply_bytes;
  std::vector<RedisReply> replies;
  for (const Pending* pending : commands) {
    const RedisCommand& command = *pending->command;
    std::vector<absl::string_view> arguments;
    if (command.script != nullptr) {
      const RedisScript& script = *command.script;
      arguments = {pending->with_text ? "EVAL" : "EVALSHA",
                   pending->with_text ? script.text : absl::string_view(script.digest), "1",
                   command.key};
    }
    arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
    if (pending->asking) {
      bytes += FormatRedisCommand({"ASKING"});
      max_reply_bytes.push_back(command.max_reply_bytes);
    }
    bytes += FormatRedisCommand(arguments);
    max_reply_bytes.push_back(command.max_reply_bytes);
  }
  const absl::Status status = Send(node, bytes, max_reply_bytes, deadline, replies);

  bool wait = !status.ok();
  auto reply = replies.begin();
  for (Pending* pending : commands) {
    if (pending->asking && reply != replies.end()) ++reply;
    pending->asking = false;
    pending->redirected.reset();
    if (reply == replies.end()) {
      // The error of a node says more than that the time was over.
      if (!pending->refused || SteadyNow() < deadline) pending->result = status;
      continue;
    }
    RedisReply answer = std::move(*reply++);
    if (!answer.is_error()) {
      pending->result = std::move(answer);
      pending->done = true;
      continue;
    }
    const absl::string_view code = FirstWord(answer.text);
    pending->result = At(node, RedisError(answer.text));
    pending->refused = true;
    RedisNode to;
    if (code == "NOSCRIPT" && !pending->with_text) {
      pending->with_text = true;
    } else if ((code == "MOVED" || code == "ASK") && ParseRedirection(answer.text, node, to)) {
      pending->redirected = to;
      pending->asking = code == "ASK";
      if (code == "MOVED") stale_ = true;
    } else if (code == "TRYAGAIN" || code == "CLUSTERDOWN" || code == "LOADING" ||
               code == "MASTERDOWN" || code == "BUSY" || code == "READONLY") {
      wait = true;
      if (code != "TRYAGAIN") stale_ = true;
    } else {
      pending->done = true;
    }
  }
  return wait;
}

std::vector<absl::StatusOr<RedisReply>> RedisNodes::Call(std::span<const RedisCommand> commands,
                                                         absl::Time deadline) {
  std::vector<Pending> all(commands.size());
  std::vector<Pending*> pending;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].command = &commands[i];
    pending.push_back(&all[i]);
  }
  absl::Duration pause = kFirstPause;
  for (int attempt = 1; !pending.empty(); ++attempt) {
    absl::Status problem = absl::UnavailableError("redis: no node serves this slot");
    if (stale_.exchange(false)) {
      if (const auto found = Refresh(deadline); !found.ok()) problem = found.status();
    }
    const std::shared_ptr<const RedisTopology> topology = this->topology();
    bool wait = attempt >= kQuickAttempts;
    std::map<RedisNode, std::vector<Pending*>> by_node;
    for (Pending* each : pending) {
      const int primary =
          topology == nullptr
              ? -1
              : topology->primary_of_slot[static_cast<size_t>(RedisSlot(each->command->key))];
      if (each->redirected.has_value()) {
        by_node[*each->redirected].push_back(each);
      } else if (primary >= 0) {
        by_node[topology->primaries[static_cast<size_t>(primary)]].push_back(each);
      } else {
        each->result = problem;
        stale_ = wait = true;
      }
    }
    for (const auto& [node, own] : by_node) wait |= CallNode(node, own, deadline);
    std::erase_if(pending, [](const Pending* each) { return each->done; });
    if (SteadyNow() + (wait ? pause : absl::ZeroDuration()) >= deadline) break;
    if (wait && !pending.empty()) {
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(pause));
      pause = std::min(2 * pause, kMaxPause);
    }
  }
  std::vector<absl::StatusOr<RedisReply>> results;
  for (Pending& each : all) results.push_back(std::move(each.result));
  return results;
}

absl::StatusOr<RedisTopology> RedisNodes::AskTopology(const RedisNode& node, absl::Time deadline,
                                                      bool& is_primary) {
  const RedisCommand commands[] = {{.arguments = {"CLUSTER", "SLOTS"}}, {.arguments = {"ROLE"}}};
  std::vector<RedisReply> replies;
  if (absl::Status status = Ask(node, commands, deadline, replies); !status.ok()) return status;
  is_primary = true;
  if (!replies[0].is_error()) {
    absl::StatusOr<RedisTopology> topology = ParseClusterSlots(replies[0], node);
    return topology.ok() ? topology : At(node, topology.status());
  }
  if (FirstWord(replies[0].text) != "ERR") return At(node, RedisError(replies[0].text));
  const RedisReply& role = replies[1];
  is_primary = !role.is_array() || role.elements.empty() || role.elements[0].text != "slave";
  RedisTopology alone{.primaries = {node}};
  alone.primary_of_slot.fill(0);
  return alone;
}

absl::StatusOr<std::shared_ptr<const RedisTopology>> RedisNodes::Refresh(absl::Time deadline) {
  std::vector<RedisNode> nodes;
  const auto add = [&](const std::vector<RedisNode>& more) {
    for (const RedisNode& node : more) {
      if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
    }
  };
  if (const std::shared_ptr<const RedisTopology> known = topology(); known != nullptr) {
    add(known->primaries);
    add(known->replicas);
  }
  add(address_.nodes);
  absl::Status problem;
  std::optional<RedisTopology> found;
  for (size_t i = 0; i < nodes.size(); ++i) {
    // Leaves time for the nodes that follow.
    const absl::Time now = SteadyNow();
    bool is_primary = false;
    absl::StatusOr<RedisTopology> topology =
        AskTopology(nodes[i], now + (deadline - now) / (nodes.size() - i), is_primary);
    if (!topology.ok()) {
      problem.Update(topology.status());
    } else if (is_primary || !found.has_value()) {
      found = *std::move(topology);
      if (is_primary) break;
    }
  }
  if (!found.has_value()) {
    stale_ = true;
    return problem;
  }
  auto topology = std::make_shared<const RedisTopology>(*std::move(found));
  WriterLock lock(mutex_);
  topology_ = topology;
  std::erase_if(idle_, [&](const auto& node) {
    return std::find(topology->primaries.begin(), topology->primaries.end(), node.first) ==
           topology->primaries.end();
  });
  return topology;
}

}  // namespace sis
