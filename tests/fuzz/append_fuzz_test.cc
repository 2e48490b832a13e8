// Any bytes as a batch of Append: no crash, the budget holds, every entry is answered, and what is
// acked is there.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <variant>

#include "kernels/block/block.h"
#include "kernels/block/digest.h"
#include "tests/fuzz/cache_with_one_record.h"

namespace sis {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckAck(const v1::AppendEntry& entry, const v1::Ack& ack, Run& run) {
  Require((ack.code() == 0) == ack.message().empty());
  if (ack.code() != 0 || !entry.has_block()) return;
  const auto block = OpenBlock(std::as_bytes(std::span(entry.block())), /*checksums=*/true);
  Require(block.ok());
  const BlockHeader& header = block->header;
  // A later entry of the batch may have evicted it.
  const Run::Found found = run.Find({entry.sequence().id(), entry.sequence().attempt()});
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (sequence == nullptr) return Require(found == Run::Found(MissingReason::kEvicted));
  Require(ack.committed_length() >= block->end());
  Require(Sequence::Reader(**sequence).Digest(header.first_position, header.positions) ==
          DigestOf(*block, 0, header.positions));
}

void Check(const v1::AppendBatch& batch) {
  static CacheWithOneRecord cache;  // what earlier inputs left behind is input, too
  const absl::StatusOr<v1::AppendResponse> response = cache.Apply(batch);
  Require(response.ok() && response->acks_size() == batch.entries_size());
  for (int i = 0; i < batch.entries_size(); ++i) {
    CheckAck(batch.entries(i), response->acks(i), *cache.run());
  }
  Require(cache.registry().budget().used() <= CacheWithOneRecord::kCacheBytes);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::v1::AppendBatch batch;
  if (!batch.ParseFromArray(data, static_cast<int>(size))) return 0;
  sis::Check(batch);
  // Under right checksums: what lies behind them is reached.
  for (sis::v1::AppendEntry& entry : *batch.mutable_entries()) {
    if (!entry.has_block()) continue;
    const std::span<char> block(*entry.mutable_block());
    if (!sis::OpenBlock(std::as_bytes(block), /*checksums=*/false).ok()) continue;
    sis::SealBlock(std::as_writable_bytes(block));
  }
  sis::Check(batch);
  return 0;
}
