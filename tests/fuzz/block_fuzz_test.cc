// CheckBlock refuses any bytes, or a writer could have written them, and never reads beyond them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/block/check.h"
#include "kernels/block/digest.h"
#include "kernels/testing/packed_again.h"
#include "kernels/testing/random_blocks.h"

namespace sis {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void Check(std::span<const std::byte> bytes) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::ranges::copy(bytes, copy.get());
  const absl::StatusOr<BlockView> block = CheckBlock({copy.get(), bytes.size()});
  if (!block.ok()) return;
  Require(CheckPositions(*block).ok());
  const uint32_t positions = block->header.positions;
  Require(std::ranges::equal(SliceBlock(*block, 0, positions), bytes));
  Require(DigestOf(*block, 0, 1) + DigestOf(*block, 1, positions - 1) ==
          DigestOf(*block, 0, positions));
  const auto again = PackedAgain(*block);
  const bool least = block->header.id_bytes == LeastIdBytes(block->header.vocabulary_size);
  if (again && least) Require(std::ranges::equal(*again, bytes));
}

// Takes numbers off the input; zeros when it ends.
class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint32_t Take(size_t size) {
    uint32_t value = 0;
    const size_t taken = std::min(size, bytes_.size());
    std::memcpy(&value, bytes_.data(), taken);
    bytes_ = bytes_.subspan(taken);
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
};

// A valid block that the input then damages, under right checksums: what lies behind them is
// reached.
void CheckDamaged(Input input) {
  const uint32_t kind = input.Take(1);
  const size_t slots = (kind / 2 % 8 == 7 ? 230 : 1) + input.Take(1) % 20;
  const auto vocabulary_size = static_cast<int32_t>(slots + 20 + 4 * input.Take(2));
  const RandomBlock whole(RandomRecords(slots, vocabulary_size, 1 + input.Take(1) % 40, kind),
                          {.encoding = static_cast<BlockEncoding>(kind % 2),
                           .vocabulary_size = vocabulary_size,
                           .first_position = input.Take(4) / 2});
  std::vector<std::byte> block(whole.block().begin(), whole.block().end());
  while (!input.empty()) {
    const size_t offset =
        sizeof(BlockHeader) + input.Take(2) % (block.size() - sizeof(BlockHeader));
    block[offset] = static_cast<std::byte>(input.Take(1));
  }
  SealBlock(block);
  Check(block);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data, size);
  sis::Check(std::as_bytes(bytes));
  sis::CheckDamaged(sis::Input(bytes));
  return 0;
}
