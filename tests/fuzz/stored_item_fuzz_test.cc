// Any bytes as a stored item or its payload give an error, or a value that encodes to exactly these
// bytes. A part is applied to a sequence completely or not at all.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/block/block.h"
#include "server/store/rocksdb/item.h"
#include "server/store/stored_parts.h"

namespace sis {
namespace {

const RunConfig kConfig = {.vocabulary_size = 10, .top_k = 2};
constexpr int64_t kBytes = 32 << 10;
// Append lets nobody begin beyond --max_positions; what lies in front of a block is gone through.
constexpr uint32_t kLastBegin = 8192;

void Require(bool condition) {
  if (!condition) std::abort();
}

void Apply(const StoredPart& part) {
  if (part.kind != StoredPart::Kind::kSeal && part.position > kLastBegin) return;
  ByteBudget budget(kBytes);
  Require(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(/*key=*/1, budget);
  int64_t bytes_short = 0;
  const absl::Status status = ApplyPart(part, kConfig, sequence, bytes_short);
  Require((bytes_short > 0) == absl::IsResourceExhausted(status));
  const bool has_any = sequence.committed_length() > 0 || sequence.sealed();
  Require(has_any == status.ok() || part.count == 0);
  if (!status.ok()) Require(budget.used() == Sequence::kBaseBytes && !status.message().empty());
}

void ParsePayload(std::string_view payload) {
  if (const auto run = ParseRun(payload); run.ok()) Require(EncodeRun(*run) == payload);
  auto part = ParsePart(payload);
  if (!part.ok()) return Require(absl::IsDataLoss(part.status()));
  Require(EncodePart(*part) == payload);
  Apply(*part);
  // Under right checksums: what lies behind the checksums is reached.
  const std::span<char> block(part->bytes);
  if (!OpenBlock(std::as_bytes(block), /*checksums=*/false).ok()) return;
  SealBlock(std::as_writable_bytes(block));
  Apply(*part);
}

void ParseItem(std::string_view item) {
  // The checksum would stop almost every input, so the payload is parsed without it as well.
  const std::string key = PartKey(SequencePrefix({"run", 1, "a", 0}), {.position = 5});
  const std::string wrapped = WrapItem(key, absl::InfiniteFuture(), item);
  Require(*UnwrapItem(key, wrapped) == item);
  std::string damaged = wrapped;
  const size_t byte = item.empty() ? 0 : static_cast<uint8_t>(item[0]) % damaged.size();
  damaged[byte] ^= 1;
  Require(absl::IsDataLoss(UnwrapItem(key, damaged).status()));
  Require(absl::IsDataLoss(UnwrapItem(key + "x", wrapped).status()));
  ItemExpires(item);
}

void ParseKey(std::string_view key) {
  const auto incarnation = IncarnationOfKey(key);
  if (!incarnation.has_value()) return;
  Require(key.starts_with(IncarnationPrefix(incarnation->first, incarnation->second)));
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const std::string copy(reinterpret_cast<const char*>(data), size);
  sis::ParsePayload(copy);
  sis::ParseItem(copy);
  sis::ParseKey(copy);
  return 0;
}
