// A stored part of any kind and bytes is applied to a sequence completely or not at all.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "kernels/block/block.h"
#include "server/store/stored_parts.h"

namespace sis {
namespace {

const RunConfig kConfig = {.vocabulary_size = 10, .top_k = 2};
constexpr int64_t kBytes = 32 << 10;
// Append lets nobody begin beyond kMaxPositions; what lies in front of a block is gone through.
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

// A kind, position and count, and then the part's bytes.
void ApplyAny(std::string_view input) {
  constexpr StoredPart::Kind kKinds[] = {StoredPart::Kind::kSeal, StoredPart::Kind::kBlock,
                                         StoredPart::Kind::kGap};
  uint32_t range[2] = {};
  if (input.size() < 1 + sizeof(range)) return;
  std::memcpy(range, input.data() + 1, sizeof(range));
  StoredPart part{.kind = kKinds[static_cast<uint8_t>(input[0]) % 3],
                  .position = range[0],
                  .count = range[1],
                  .bytes = std::string(input.substr(1 + sizeof(range)))};
  Apply(part);
  // Under right checksums: what lies behind the checksums is reached.
  const std::span<char> block(part.bytes);
  if (!OpenBlock(std::as_bytes(block), /*checksums=*/false).ok()) return;
  SealBlock(std::as_writable_bytes(block));
  Apply(part);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const std::string copy(reinterpret_cast<const char*>(data), size);
  sis::ApplyAny(copy);
  return 0;
}
