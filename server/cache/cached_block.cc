#include "server/cache/cached_block.h"

#include <cstring>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/digest.h"
#include "kernels/block/pack.h"

namespace sis {
namespace {

constexpr int64_t kIndexBytes = 32;

size_t AllocatedBytes(size_t bytes) { return sizeof(CachedBlock) + bytes + kBlockSlack; }

bool FitTogether(const BlockHeader& first, const BlockHeader& second) {
  BlockHeader both = first;
  both.positions += second.positions;
  both.used_slots += second.used_slots;
  return both.positions <= kMaxBlockPositions && BlockLayout(both).end <= kMaxBlockBytes;
}

}  // namespace

CachedBlock::CachedBlock(const BlockView& block, uint64_t digest)
    : size_(static_cast<uint32_t>(block.bytes.size())),
      first_position_(block.header.first_position),
      positions_(block.header.positions),
      policy_version_(block.header.policy_version),
      digest_(digest) {
  std::memcpy(this + 1, block.bytes.data(), block.bytes.size());
}

std::unique_ptr<const CachedBlock> CachedBlock::Copy(const BlockView& block, uint64_t digest) {
  void* memory = ::operator new(AllocatedBytes(block.bytes.size()));
  return std::unique_ptr<const CachedBlock>(::new (memory) CachedBlock(block, digest));
}

std::unique_ptr<const CachedBlock> CachedBlock::Copy(const BlockView& block) {
  return Copy(block, DigestOf(block, 0, block.header.positions));
}

std::unique_ptr<const CachedBlock> CachedBlock::Merge(const CachedBlock& first,
                                                      const CachedBlock& second) {
  const BlockView view = first.view(), next = second.view();
  if (first.end() != second.first_position_ || first.policy_version_ != second.policy_version_ ||
      !FitTogether(view.header, next.header)) {
    return nullptr;
  }
  // Merging would give damaged bytes valid checksums.
  if (!first.Check().ok() || !second.Check().ok()) return nullptr;
  const absl::StatusOr<std::vector<std::byte>> merged = MergeBlocks(view, next);
  if (!merged.ok()) return nullptr;
  return Copy(*OpenBlock(*merged, /*checksums=*/false), first.digest_ + second.digest_);
}

int64_t CachedBlock::Charge(size_t bytes) {
  return static_cast<int64_t>(AllocatedBytes(bytes)) + kIndexBytes;
}

BlockView CachedBlock::view() const {
  BlockHeader header;
  std::memcpy(&header, bytes().data(), sizeof header);
  return BlockView(header, bytes());
}

absl::Status CachedBlock::Check() const {
  const auto data_loss = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat("the block of positions ", first_position_, " to ",
                                            end() - 1, " is corrupt: ", why));
  };
  if (corrupt()) return data_loss("a checksum was wrong before");
  const absl::StatusOr<BlockView> block = OpenBlock(bytes(), /*checksums=*/true);
  if (block.ok()) return absl::OkStatus();
  corrupt_.store(true, std::memory_order_relaxed);
  return data_loss(block.status().message());
}

uint64_t CachedBlock::Digest(uint32_t index, uint32_t count) const {
  if (count == positions_) return corrupt() ? 0 : digest_;
  return Check().ok() ? DigestOf(view(), index, count) : 0;
}

uint64_t CachedBlock::DigestBefore(uint32_t index, uint32_t count) const {
  return count == positions_ ? digest_ : Digest(index, count);
}

}  // namespace sis
