// The bytes charged for a sequence are at least its memory, and not much more.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/block/pack.h"
#include "server/cache/run.h"
#include "server/store/sequence_parts.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

// Hash tables have just grown: they are as empty as they ever are.
constexpr int kSequences = (1 << 12) * 7 / 8 + 1;

// Attaches what the stored cache does.
class AttachingStore final : public BackingStore {
 public:
  std::unique_ptr<Attachment> Attach() override { return std::make_unique<SequenceParts>(); }
  FoundSequence Find(Run& run, const SequenceName& name) override { return run.Find(name); }
  void DropBehind(const Run&, const SequenceName&, MissingReason) override {}
  void DropRunBehind(const Run&) override {}
};

struct Kind {
  std::string name;
  size_t id_bytes = 15;
  uint32_t positions = 16;
  uint32_t positions_per_version = 1 << 20;
  bool stored = false;
};

class ChargedBytesTest : public testing::TestWithParam<Kind> {};

constexpr int kSlots = 10;

// Sets that use all slots.
Records FullSets(uint32_t positions) {
  Records records{.slots = kSlots};
  for (uint32_t i = 0; i < positions; ++i) {
    for (int slot = 0; slot < kSlots; ++slot) {
      records.ids.push_back(slot);
      records.log_probs.push_back(-1.0f - 0.5f * static_cast<float>(slot));
    }
    records.sampled_ids.push_back(0);
    records.sampled_log_probs.push_back(-1.0f);
  }
  return records;
}

int64_t HeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

TEST_P(ChargedBytesTest, CoverTheHeapsAllocations) {
  const Kind& kind = GetParam();
  const RunConfig config{
      .seed = 1, .vocabulary_size = 151'936, .top_k = kSlots, .max_staleness = 2};
  const Records records = FullSets(kind.positions);
  std::vector<std::vector<std::byte>> blocks;
  for (uint32_t first = 0; first < kind.positions; first += kind.positions_per_version) {
    const uint32_t count = std::min(kind.positions - first, kind.positions_per_version);
    blocks.push_back(*PackBlock(records.View(first, count), {.slots = kSlots,
                                                             .vocabulary_size = 151'936,
                                                             .first_position = first,
                                                             .policy_version = 2 + first}));
  }
  ByteBudget budget(int64_t{1} << 30), steps(1 << 20), inspection(1 << 20);
  AttachingStore store;
  sis::Run run(
      "r", 1, config, Limits(), budget, steps, inspection, std::make_shared<RunCounters>(),
      [] { return absl::UnixEpoch(); }, kind.stored ? &store : nullptr);

  std::vector<SequenceName> names;
  for (int i = 0; i < kSequences; ++i) {
    std::string id = std::to_string(i);
    names.push_back({id + std::string(kind.id_bytes - id.size(), '.'), 0});
  }
  const int64_t before = HeapBytes();
  for (int i = 0; i < kSequences; ++i) {
    const std::shared_ptr<Sequence> sequence = *run.FindOrCreate(names[i]);
    for (const std::vector<std::byte>& block : blocks) {
      const absl::Status added = sequence->Append(*OpenBlock(block, /*checksums=*/false));
      ASSERT_TRUE(added.ok()) << added;
    }
    ASSERT_TRUE(sequence->Seal(kind.positions).ok());
  }
  ASSERT_EQ(*run.AdvanceVersion(2), 0) << "puts them all under their versions";
  run.Keep(names, absl::Hours(1));

  const int64_t taken = HeapBytes() - before;
  const int64_t charged = run.budget().used();
  EXPECT_LE(taken, charged) << taken / kSequences << " each";
  EXPECT_GE(taken, charged * 2 / 5) << taken / kSequences << " each";
  if (kind.name == "short_id") {
    EXPECT_LE(run.budget().used(), kSequences * 1700);
  }
  for (const SequenceName& name : names) run.Release(name);
  EXPECT_EQ(run.budget().used(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, ChargedBytesTest,
    testing::Values(Kind{.name = "short_id"}, Kind{.name = "longer_id", .id_bytes = 23},
                    Kind{.name = "longest_id", .id_bytes = kMaxIdBytes},
                    Kind{.name = "stored", .stored = true},
                    Kind{.name = "many_positions", .positions = 1024},
                    Kind{.name = "many_versions", .positions = 300, .positions_per_version = 1}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace sis
