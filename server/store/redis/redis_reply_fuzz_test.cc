// Any bytes as replies of Redis: the parsers return what a store may hold, or an error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/store/hash_store.h"
#include "server/store/redis/redis_nodes.h"
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

// A store in which every hash has the fields that a reply has.
class HashOf final : public HashStore {
 public:
  explicit HashOf(const RedisReply& reply) : HashStore("") {
    for (size_t i = 1; i < reply.elements.size(); i += 2) {
      fields_[reply.elements[i - 1].text] = reply.elements[i].text;
    }
  }
  bool shared() const override { return false; }
  absl::Status CanPut() override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence>, absl::Time) override {
    return std::vector<bool>();
  }
  absl::Status DropIncarnations(const std::string&, uint64_t, uint64_t) override {
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Hash> Read(absl::string_view) override { return Hash{.fields = fields_}; }
  absl::StatusOr<Fields> ReadFields(absl::string_view,
                                    const std::vector<absl::string_view>& fields) override {
    Fields found;
    for (const absl::string_view field : fields) {
      const auto it = fields_.find(std::string(field));
      if (it != fields_.end()) found.insert(*it);
    }
    return found;
  }
  absl::Status Change(const HashChange&) override { return absl::OkStatus(); }

  Fields fields_;
};

void Check(const RedisReply& reply) {
  Require(MemoryOf(reply) <= kMaxReplyBytes);
  if (reply.is_error()) Require(!RedisError(reply.text).ok());
  const absl::StatusOr<RedisPrimaries> primaries = ParseClusterSlots(reply, {.host = "asked"});
  if (primaries.ok()) {
    Require(!primaries->empty());
    for (const auto& [slot, node] : *primaries) Require(!node.host.empty() && node.port > 0);
  }
  HashOf store(reply);
  if (const auto runs = store.ListRuns(); runs.ok()) {
    for (const StoredRun& run : runs->runs) Require(*store.GetRun(run.run_id) == run);
  }
  const absl::StatusOr<StoredSequence> sequence = store.Load({"run", 1, "a", 0});
  if (!sequence.ok()) {
    Require(absl::IsDataLoss(sequence.status()) || absl::IsNotFound(sequence.status()));
    return;
  }
  Require(sequence->revision > 0 && sequence->dropped.has_value() == sequence->parts.empty());
  for (const StoredPart& part : sequence->parts) {
    if (part.kind == StoredPart::Kind::kSeal) continue;
    Require(part.count > 0 && uint64_t{part.position} + part.count <= UINT32_MAX);
  }
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  sis::RedisReplyReader reader;
  const auto receive = [&](std::string& received) -> absl::Status {
    if (bytes.empty()) return absl::UnavailableError("the end");
    // As bytes arrive over a network: in pieces of any size.
    const size_t piece = std::min(bytes.size(), size_t{1} + static_cast<uint8_t>(bytes[0]) % 61);
    received.append(bytes.substr(0, piece));
    bytes.remove_prefix(piece);
    return absl::OkStatus();
  };
  for (;;) {
    const absl::StatusOr<sis::RedisReply> reply = reader.Next(sis::kMaxReplyBytes, receive);
    if (!reply.ok()) return 0;
    sis::Check(*reply);
  }
}
