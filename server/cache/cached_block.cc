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

// Returns memory for an object and its `bytes`, which follow it.
void* Allocate(size_t bytes) { return ::operator new(AllocatedBytes(bytes)); }
std::byte* BytesIn(void* memory) { return static_cast<std::byte*>(memory) + sizeof(CachedBlock); }

}  // namespace

CachedBlock::CachedBlock(const BlockHeader& header, size_t size, uint64_t digest)
    : size_(static_cast<uint32_t>(size)),
      first_position_(header.first_position),
      positions_(header.positions),
      policy_version_(header.policy_version),
      digest_(digest) {}

std::unique_ptr<const CachedBlock> CachedBlock::Copy(const BlockView& block) {
  void* const memory = Allocate(block.bytes.size());
  std::memcpy(BytesIn(memory), block.bytes.data(), block.bytes.size());
  const uint64_t digest = DigestOf(block, 0, block.header.positions);
  return std::unique_ptr<const CachedBlock>(
      ::new (memory) CachedBlock(block.header, block.bytes.size(), digest));
}

bool CachedBlock::Continues(const CachedBlock& before) const {
  if (first_position_ != before.end() || policy_version_ != before.policy_version_) return false;
  const BlockHeader own = view().header, other = before.view().header;
  return own.encoding == other.encoding && own.id_bytes == other.id_bytes;
}

CachedBlock::Merged CachedBlock::Merge(std::span<const CachedBlock* const> blocks) {
  std::vector<BlockView> views;
  BlockHeader whole = blocks[0]->view().header;
  whole.positions = whole.used_slots = 0;
  uint64_t digest = 0;
  for (const CachedBlock* block : blocks) {
    if (!views.empty() && !block->Continues(*blocks[views.size() - 1])) break;
    const BlockView view = block->view();
    whole.positions += view.header.positions;
    whole.used_slots += view.header.used_slots;
    if (whole.positions > kMaxBlockPositions || BlockLayout(whole).end > kMaxBlockBytes) break;
    // Merging would give damaged bytes valid checksums.
    if (!block->Check().ok()) break;
    views.push_back(view);
    digest += block->digest_;
  }
  if (views.size() < 2) return {nullptr, 0};
  void* memory = nullptr;
  size_t size = 0;
  const absl::Status status = MergeBlocks(views, [&](size_t bytes) {
    size = bytes;
    memory = Allocate(bytes);
    return BytesIn(memory);
  });
  if (!status.ok()) return {nullptr, 0};
  BlockHeader header;
  std::memcpy(&header, BytesIn(memory), sizeof header);
  return {std::unique_ptr<const CachedBlock>(::new (memory) CachedBlock(header, size, digest)),
          views.size()};
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
