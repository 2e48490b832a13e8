// Any bytes as a batch of Append: no crash, the budget holds, every entry is answered, and what is
// acked is there.
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/cache_with_one_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::v1::AppendBatch batch;
  if (!batch.ParseFromArray(data, static_cast<int>(size))) return 0;
  static sis::CacheWithOneRecord cache;  // what earlier inputs left behind is input, too
  const absl::StatusOr<sis::v1::AppendResponse> response = cache.Apply(batch);
  if (!response.ok() || response->acks_size() != batch.entries_size()) std::abort();
  for (int i = 0; i < batch.entries_size(); ++i) {
    const sis::v1::Ack& ack = response->acks(i);
    if ((ack.code() == 0) != ack.message().empty()) std::abort();
    if (ack.code() == 0 && batch.entries(i).has_block() &&
        ack.committed_length() < batch.entries(i).block().sampled_ids().size() / 4) {
      std::abort();
    }
  }
  if (cache.registry().budget().used() > sis::CacheWithOneRecord::kCacheBytes) std::abort();
  return 0;
}
