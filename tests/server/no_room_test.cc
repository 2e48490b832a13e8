// Appends where memory is short: what goes for them, and when they are refused.
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "kernels/block/pack.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;

constexpr int kSlots = 4;

// Returns the bytes charged for a sequence of these records.
int64_t BytesOf(const Records& records) {
  const auto block = PackBlock(records.View(), {.slots = kSlots, .vocabulary_size = 1000});
  return Sequence::kBaseBytes + CachedBlock::Charge(block->size());
}

// A cache with room for three such sequences; "a", "b" and "c" are there.
class NoRoomTest : public testing::Test {
 protected:
  explicit NoRoomTest(bool evict_unread = false) {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_evict_unread(evict_unread);
    run_ = cache_.CreateRun("r", config);
    for (const std::string id : {"a", "b", "c"}) {
      EXPECT_EQ(Append(id), StatusCode::kOk);
      cache_.clock.Advance(absl::Milliseconds(1));
    }
  }

  StatusCode Append(const std::string& id) {
    const v1::Ack ack = AppendBlock(cache_, *run_, records_.Block(id));
    EXPECT_EQ(ack.retry_seconds() > 0, ack.code() != 0);
    return static_cast<StatusCode>(ack.code());
  }
  bool Has(const std::string& id) {
    return std::holds_alternative<std::shared_ptr<Sequence>>(run_->FindToChange({id, 0}));
  }
  double evicted_unread() const { return run_->counters().totals().evicted_unread; }

  const Records records_ = RecordGenerator(kSlots, 1000, 5).NextRecords(60);
  Cache cache_{3 * BytesOf(records_)};
  std::shared_ptr<sis::Run> run_;
};

class EvictUnreadTest : public NoRoomTest {
 protected:
  EvictUnreadTest() : NoRoomTest(true) {}
};

TEST_F(NoRoomTest, UnreadSequencesStayWhileATrainerMayReadThem) {
  EXPECT_EQ(Append("d"), StatusCode::kResourceExhausted);
  EXPECT_EQ(run_->Describe().sequences, 3) << "neither is anything evicted nor 'd' begun";
  run_->Find({"b", 0});
  EXPECT_EQ(Append("d"), StatusCode::kOk);
  EXPECT_FALSE(Has("b")) << "it was read";
  EXPECT_TRUE(Has("a") && Has("c"));
  EXPECT_EQ(evicted_unread(), 0);
  EXPECT_EQ(Append("a"), StatusCode::kOk) << "what is there needs no room";
}

TEST_F(NoRoomTest, UnreadSequencesAreEvictedAfterTheTrainerStops) {
  run_->Find({"a", 0});
  cache_.clock.Advance(Limits().reader_absence);
  run_->Find({"none", 0});
  EXPECT_EQ(Append("d"), StatusCode::kOk);
  EXPECT_EQ(Append("e"), StatusCode::kResourceExhausted);
  cache_.clock.Advance(Limits().reader_absence + absl::Milliseconds(1));
  EXPECT_EQ(Append("e"), StatusCode::kOk);
  EXPECT_EQ(evicted_unread(), 1);
  EXPECT_FALSE(Has("b")) << "used longest ago";
  EXPECT_TRUE(Has("c") && Has("d"));
}

TEST_F(NoRoomTest, AppendsOfAnotherRunAreRefusedUntilTheTrainerStops) {
  const auto other = cache_.CreateRun("other", SmallConfig(kSlots));
  cache_.clock.Advance(Limits().reader_absence + absl::Milliseconds(1));
  run_->Find({"none", 0});
  EXPECT_EQ(AppendBlock(cache_, *other, records_.Block("d")).code(),
            static_cast<int>(StatusCode::kResourceExhausted));
  cache_.clock.Advance(Limits().reader_absence + absl::Milliseconds(1));
  EXPECT_EQ(AppendBlock(cache_, *other, records_.Block("d")).code(), 0);
  EXPECT_FALSE(Has("a")) << "of any run that nobody reads";
}

TEST_F(EvictUnreadTest, AKeptSequenceStaysUntilItsDeadlineWithoutItsTrainer) {
  run_->Keep(std::vector<SequenceName>{{"a", 0}}, absl::Hours(1));
  cache_.clock.Advance(absl::Hours(1));  // a little before, as the clock is not at a whole second
  for (const std::string id : {"d", "e", "f"}) EXPECT_EQ(Append(id), StatusCode::kOk);
  EXPECT_TRUE(Has("a"));
  cache_.clock.Advance(absl::Minutes(1) + absl::Seconds(1));
  for (const std::string id : {"g", "h", "i"}) EXPECT_EQ(Append(id), StatusCode::kOk);
  EXPECT_FALSE(Has("a"));
}

TEST_F(EvictUnreadTest, AnEntryThatCanNeverFitEvictsNothing) {
  const auto refused = [&](const RecordedBlock& block, sis::Run& run) {
    EXPECT_EQ(AppendBlock(cache_, run, block).code(),
              static_cast<int>(StatusCode::kResourceExhausted));
  };
  RecordGenerator generator(kSlots, 1000, 6);
  refused(generator.NextRecords(64 * 20).Block("d"), *run_);
  // With what 'a' holds already.
  refused(generator.NextRecords(64 * 12).Block("a", 64, 0, 0, 64 * 12), *run_);
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_byte_quota(BytesOf(records_));
  const auto small = cache_.CreateRun("small", config);
  refused(generator.NextRecords(64).Block("a", 32, 0, 0, 64), *small);
  EXPECT_EQ(run_->Describe().sequences, 3);
}

}  // namespace
}  // namespace sis
