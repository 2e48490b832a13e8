// Any bytes as replies of Redis: the parsers return what a store may hold, or an error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/store/redis/redis_nodes.h"
#include "server/store/redis/redis_records.h"
#include "server/store/redis/redis_reply.h"

namespace sis {
namespace {

constexpr size_t kMaxReplyBytes = size_t{1} << 16;

void Require(bool condition) {
  if (!condition) std::abort();
}

size_t MemoryOf(const RedisReply& reply) {
  size_t bytes = reply.text.size() + reply.elements.size() * sizeof(RedisReply);
  for (const RedisReply& element : reply.elements) bytes += MemoryOf(element);
  return bytes;
}

void Check(const RedisReply& reply) {
  Require(MemoryOf(reply) <= kMaxReplyBytes);
  if (reply.is_error()) Require(!RedisError(reply.text).ok());
  const absl::StatusOr<RedisTopology> topology = ParseClusterSlots(reply, {.host = "asked"});
  if (topology.ok()) {
    const auto count = static_cast<int>(topology->primaries.size());
    for (const int primary : topology->primary_of_slot) Require(primary >= -1 && primary < count);
    for (const RedisNode& node : topology->primaries) Require(!node.host.empty() && node.port > 0);
  }
  if (const absl::StatusOr<RedisRun> run = ParseRun("run", reply.text); run.ok()) {
    Require(EncodeRun(*run) == reply.text);
  }
  const absl::StatusOr<StoredSequence> sequence = ParseSequence(reply);
  if (!sequence.ok()) {
    Require(absl::IsDataLoss(sequence.status()) || absl::IsNotFound(sequence.status()));
    return;
  }
  Require(sequence->dropped.has_value() == sequence->parts.empty());
  uint64_t end = 0;
  for (const StoredPart& part : sequence->parts) {
    if (part.kind != StoredPart::Kind::kBlock) continue;
    Require(part.count > 0 && part.position >= end);
    end = uint64_t{part.position} + part.count;
    Require(end <= UINT32_MAX);
  }
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  sis::RedisReplyReader reader;
  while (!bytes.empty()) {
    // As bytes arrive over a network: in pieces of any size.
    const size_t piece = std::min(bytes.size(), size_t{1} + static_cast<uint8_t>(bytes[0]) % 61);
    reader.Feed(bytes.substr(0, piece));
    bytes.remove_prefix(piece);
    for (;;) {
      const absl::StatusOr<std::optional<sis::RedisReply>> reply = reader.Next(sis::kMaxReplyBytes);
      if (!reply.ok()) return 0;
      if (!reply->has_value()) break;
      sis::Check(**reply);
    }
  }
  return 0;
}
