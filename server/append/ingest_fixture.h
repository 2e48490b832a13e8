// A cache with one run, and entries for it, for the tests of Append.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "kernels/block/pack.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

inline constexpr int kSlots = 4;

// Returns positions with full sets: ids 10, 11, 12, 13 with probabilities 0.4, 0.3, 0.2, 0.05. The
// sampled id is 12.
inline Records PlainRecords(uint32_t count) {
  Records records{.slots = kSlots};
  for (uint32_t i = 0; i < count; ++i) {
    records.sampled_ids.push_back(12);
    records.sampled_log_probs.push_back(std::log(0.2f));
    for (int slot = 0; slot < kSlots; ++slot) {
      records.ids.push_back(10 + slot);
      records.log_probs.push_back(std::log(std::array{0.4f, 0.3f, 0.2f, 0.05f}[slot]));
    }
    records.ranks.push_back(2);
  }
  return records;
}

// Returns the bytes that a sequence of a SmallConfig is charged for its only block.
inline int64_t ChargeOf(const Records& records) {
  return CachedBlock::Charge(
      PackBlock(records.View(), {.slots = kSlots, .vocabulary_size = 1000})->size());
}

class IngestTest : public testing::Test {
 protected:
  v1::Ack Block(const RecordedBlock& block) { return AppendBlock(cache_, *run_, block); }
  v1::Ack Entry(v1::AppendEntry entry) { return IngestEntry(cache_, *run_, std::move(entry)); }
  static absl::StatusCode CodeOf(const v1::Ack& ack) {
    return static_cast<absl::StatusCode>(ack.code());
  }

  Cache cache_;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", SmallConfig(kSlots));
  const Records records_ = PlainRecords(10);
};

}  // namespace sis
