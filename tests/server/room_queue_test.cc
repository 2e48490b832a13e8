#include "server/append/room_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;

constexpr int kSlots = 4;

int64_t BytesOfOnePage() {
  return Sequence::kBaseBytes + Sequence::kVersionSpanBytes + OnePage(kSlots);
}

// What server/rpc/append_stream does, without gRPC.
class Stream final : public RoomQueue::Waiter {
 public:
  Stream(Cache& cache, const Run& run)
      : queue_(cache.room_queue),
        ingest_(*Ingest::Open(cache.runs, cache.room_queue, HeaderOf(run))) {}

  void Send(v1::AppendBatch batch) {
    batch_ = std::move(batch);
    acks_.clear();
    answered_ = false;
    std::optional<RoomWanted> wanted = Resume(Turn::kArrived);
    if (!wanted.has_value()) return;
    if (absl::Status joined = queue_.Join(*this, *std::move(wanted)); !joined.ok()) GiveUp(joined);
  }
  void Send(const v1::Block& block) {
    v1::AppendBatch batch;
    *batch.add_entries()->mutable_block() = block;
    Send(std::move(batch));
  }
  void Cancel() { queue_.Leave(*this); }

  std::optional<RoomWanted> Resume(Turn turn) override {
    if (cancelled_in_its_turn_) queue_.Leave(*this);
    auto wanted = ingest_.Apply(EntriesOf(batch_), turn, acks_);
    if (!wanted.ok()) {
      GiveUp(wanted.status());
      return std::nullopt;
    }
    // If it is answered it may be gone at once.
    if (!wanted->has_value()) answered_ = true;
    return *std::move(wanted);
  }
  void GiveUp(const absl::Status& status) override {
    status_ = status;
    ended_ = true;
  }

  void CancelInItsTurn() { cancelled_in_its_turn_ = true; }
  bool answered() const { return answered_; }
  bool ended() const { return ended_; }
  v1::AppendResponse response() const { return ResponseOf(batch_, acks_); }
  const absl::Status& status() const { return status_; }
  StatusCode code(int entry = 0) const { return acks_.at(entry).status.code(); }

 private:
  RoomQueue& queue_;
  Ingest ingest_;
  v1::AppendBatch batch_;
  std::vector<EntryAck> acks_;
  std::atomic<bool> answered_ = false;
  std::atomic<bool> ended_ = false;
  bool cancelled_in_its_turn_ = false;
  absl::Status status_;
};

// A cache with room for three sequences of an open page; "a", "b" and "c" are there, and leased.
class RoomQueueTest : public testing::Test {
 protected:
  RoomQueueTest() {
    for (const std::string id : {"a", "b", "c"}) {
      EXPECT_EQ(AppendBlock(cache_, *run_, records_.Block(id)).code(), 0);
      leases_.push_back(Lease(*run_, id));
      cache_.clock.Advance(absl::Milliseconds(1));
    }
  }

  // Two pages, none of them full.
  v1::Block Longer(const std::string& id) const { return longer_.Block(id, 32, 0, 0, 64); }

  static uint64_t Lease(sis::Run& run, const std::string& id) {
    const std::vector<SequenceName> names = {{id, 0}};
    return *run.Lease(names, absl::Hours(1));
  }
  static MissingReason ReasonOf(sis::Run& run, const std::string& id) {
    return std::get<MissingReason>(run.Find({id, 0}));
  }

  RecordGenerator generator_{kSlots, 1000, 5};
  const Records records_ = generator_.NextRecords(60);
  const Records longer_ = generator_.NextRecords(64);
  Cache cache_{3 * BytesOfOnePage()};
  RoomQueue& queue_ = cache_.room_queue;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", [] {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_evict_unread(true);
    return config;
  }());
  std::vector<uint64_t> leases_;
};

TEST_F(RoomQueueTest, WaitsForALease) {
  Stream stream(cache_, *run_);
  stream.Send(records_.Block("d"));
  EXPECT_FALSE(stream.answered());
  EXPECT_EQ(queue_.size(), 1);
  queue_.Serve();
  EXPECT_FALSE(stream.answered());
  EXPECT_EQ(run_->Describe().sequences, 3) << "neither is anything evicted nor 'd' begun";

  run_->EndLease(leases_[1]);
  queue_.Serve();
  ASSERT_TRUE(stream.answered());
  EXPECT_EQ(stream.code(), StatusCode::kOk);
  EXPECT_EQ(stream.response().acks(0).committed_length(), 60);
  EXPECT_EQ(ReasonOf(*run_, "b"), MissingReason::kEvicted);
  EXPECT_EQ(queue_.size(), 0);
}

TEST_F(RoomQueueTest, WaitsForAReader) {
  run_->EndLease(leases_[0]);
  sis::Run::Found read = run_->Find({"a", 0});
  Stream stream(cache_, *run_);
  stream.Send(records_.Block("d"));
  queue_.Serve();
  EXPECT_FALSE(stream.answered());
  read = MissingReason::kNeverArrived;
  queue_.Serve();
  EXPECT_TRUE(stream.answered());
  EXPECT_EQ(ReasonOf(*run_, "a"), MissingReason::kEvicted);
}

// With room for three sequences, which a run keeps until they have been read.
class UnreadTest : public RoomQueueTest {
 protected:
  UnreadTest() {
    for (const std::string id : {"x", "y", "z"}) {
      EXPECT_EQ(AppendBlock(cache_, *run_, records_.Block(id)).code(), 0);
      cache_.clock.Advance(absl::Milliseconds(1));
    }
  }
  double evicted_unread() const { return run_->counters().totals().evicted_unread; }

  Cache cache_{3 * BytesOfOnePage()};
  RoomQueue& queue_ = cache_.room_queue;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", SmallConfig(kSlots));
};

TEST_F(UnreadTest, AppendsWaitUntilOneIsRead) {
  Stream stream(cache_, *run_);
  stream.Send(records_.Block("next"));
  queue_.Serve();
  EXPECT_FALSE(stream.answered());
  EXPECT_EQ(run_->Describe().unread_sequences, 3);
  run_->Find({"y", 0});
  EXPECT_EQ(run_->Describe().unread_sequences, 2);
  queue_.Serve();
  ASSERT_TRUE(stream.answered());
  EXPECT_EQ(stream.code(), StatusCode::kOk);
  EXPECT_EQ(ReasonOf(*run_, "y"), MissingReason::kEvicted);
  EXPECT_EQ(evicted_unread(), 0);
}

TEST_F(UnreadTest, TheOldestGoesWhenPatienceEnds) {
  v1::AppendBatch batch;
  for (const std::string id : {"first", "x", "second"}) {
    *batch.add_entries()->mutable_block() = records_.Block(id);
  }
  Stream stream(cache_, *run_), after(cache_, *run_);
  stream.Send(batch);
  cache_.clock.Advance(Limits().append_patience - absl::Milliseconds(1));
  queue_.Serve();
  EXPECT_FALSE(stream.answered());
  after.Send(records_.Block("third"));
  cache_.clock.Advance(absl::Milliseconds(1));
  queue_.Serve();
  ASSERT_TRUE(stream.answered());
  EXPECT_EQ(stream.code(0), StatusCode::kOk);
  EXPECT_EQ(stream.code(1), StatusCode::kOk) << "used when the batch came";
  EXPECT_EQ(stream.code(2), StatusCode::kOk);
  EXPECT_FALSE(after.answered()) << "its own patience has not ended";
  EXPECT_EQ(evicted_unread(), 2);
  EXPECT_EQ(ReasonOf(*run_, "y"), MissingReason::kEvicted);
  EXPECT_EQ(ReasonOf(*run_, "z"), MissingReason::kEvicted);
  EXPECT_EQ(run_->Describe().sequences, 3);
}

TEST_F(UnreadTest, WhatIsStaleGoesUnread) {
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_max_staleness(0);
  run_ = cache_.CreateRun("r", config, 2);
  for (const std::string id : {"x", "y", "z"}) {
    ASSERT_EQ(AppendBlock(cache_, *run_, records_.Block(id)).code(), 0);
  }
  ASSERT_EQ(*run_->AdvanceVersion(1), 3);
  EXPECT_EQ(evicted_unread(), 0);
  Stream stream(cache_, *run_);
  stream.Send(records_.Block("next"));
  EXPECT_TRUE(stream.answered());
}

// Eight times what there is room for, and a trainer that reads each once: as long as nobody's
// patience ends, it finds all that was acked.
TEST_F(UnreadTest, NothingIsLostToATrainerThatReadsAll) {
  run_ = cache_.CreateRun("r", SmallConfig(kSlots), 2);
  std::vector<std::string> acked;
  int read = 0;
  for (int i = 0; i < 24; ++i) {
    Stream stream(cache_, *run_);
    stream.Send(records_.Block(std::to_string(i)));
    while (!stream.answered()) {
      ASSERT_LT(read, acked.size());
      EXPECT_TRUE(std::holds_alternative<std::shared_ptr<Sequence>>(run_->Find({acked[read], 0})))
          << acked[read];
      ++read;
      queue_.Serve();
    }
    ASSERT_EQ(stream.code(), StatusCode::kOk);
    acked.push_back(std::to_string(i));
  }
  EXPECT_EQ(evicted_unread(), 0);
  EXPECT_EQ(run_->counters().totals().dropped_by_reason[static_cast<int>(MissingReason::kEvicted)],
            21);
}

TEST_F(RoomQueueTest, GoesOnWhereItStopped) {
  v1::AppendBatch batch;
  for (const std::string id : {"a", "d", "b"}) {
    *batch.add_entries()->mutable_block() = records_.Block(id);
  }
  *batch.add_entries()->mutable_block() = Longer("e");
  Stream stream(cache_, *run_);
  stream.Send(batch);
  EXPECT_EQ(stream.response().acks_size(), 1);
  run_->EndLease(leases_[0]);
  queue_.Serve();
  EXPECT_FALSE(stream.answered());
  EXPECT_EQ(stream.response().acks_size(), 3);
  run_->EndLease(leases_[1]);
  queue_.Serve();
  ASSERT_TRUE(stream.answered());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(stream.code(i), StatusCode::kOk) << i;
}

TEST_F(RoomQueueTest, PatienceEndsForTheWholeBatch) {
  v1::AppendBatch batch;
  for (const std::string id : {"d", "a", "e"}) {
    *batch.add_entries()->mutable_block() = records_.Block(id);
  }
  Stream stream(cache_, *run_);
  stream.Send(batch);
  cache_.clock.Advance(Limits().append_patience - absl::Milliseconds(1));
  queue_.Serve();
  EXPECT_FALSE(stream.answered());
  cache_.clock.Advance(absl::Milliseconds(1));
  queue_.Serve();
  ASSERT_TRUE(stream.answered());
  EXPECT_EQ(stream.code(0), StatusCode::kResourceExhausted);
  EXPECT_GT(stream.response().acks(0).retry_seconds(), 0);
  EXPECT_EQ(stream.code(1), StatusCode::kOk) << "needs no room";
  EXPECT_EQ(stream.code(2), StatusCode::kResourceExhausted);
  EXPECT_EQ(run_->Describe().sequences, 3);
}

TEST_F(RoomQueueTest, WhatCanNeverFitIsRefusedAtOnce) {
  const auto refused = [&](const v1::Block& block, sis::Run& run) {
    Stream stream(cache_, run);
    stream.Send(block);
    EXPECT_TRUE(stream.answered());
    EXPECT_EQ(stream.code(), StatusCode::kResourceExhausted);
    EXPECT_GT(stream.response().acks(0).retry_seconds(), 0);
  };
  refused(generator_.NextRecords(64 * 20).Block("d"), *run_);
  // With what 'a' holds already.
  const Records many_pages = generator_.NextRecords(64 * 12);
  refused(many_pages.Block("a", 64, 0, 0, 64 * 12), *run_);
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_byte_quota(BytesOfOnePage());
  const auto small = cache_.CreateRun("small", config);
  refused(Longer("a"), *small);
  EXPECT_EQ(run_->Describe().sequences, 3);
}

TEST_F(RoomQueueTest, ServesInOrderOfArrivalAndNewcomersDoNotOvertake) {
  Stream large(cache_, *run_), small(cache_, *run_), late(cache_, *run_);
  large.Send(Longer("large"));
  small.Send(records_.Block("small"));
  run_->EndLease(leases_[0]);
  queue_.Serve();
  EXPECT_FALSE(large.answered());
  EXPECT_FALSE(small.answered()) << "the large one came first";
  late.Send(records_.Block("late"));
  EXPECT_FALSE(late.answered()) << "although there would be room";
  late.Cancel();
  Stream resent(cache_, *run_);
  resent.Send(records_.Block("b"));
  EXPECT_TRUE(resent.answered()) << "needs no room";

  run_->EndLease(leases_[1]);
  queue_.Serve();
  EXPECT_TRUE(large.answered());
  EXPECT_EQ(large.code(), StatusCode::kOk);
  EXPECT_TRUE(small.answered());
  EXPECT_EQ(small.code(), StatusCode::kOk);
  EXPECT_EQ(ReasonOf(*run_, "large"), MissingReason::kEvicted) << "as it came after";
}

TEST_F(RoomQueueTest, AQuotaHoldsUpItsOwnRunOnly) {
  Cache cache(10 * BytesOfOnePage());
  RoomQueue& queue = cache.room_queue;
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_byte_quota(3 * BytesOfOnePage());
  const auto limited = cache.CreateRun("limited", config);
  const auto other = cache.CreateRun("other", SmallConfig(kSlots));
  std::vector<uint64_t> leases;
  for (const std::string id : {"a", "b"}) {
    ASSERT_EQ(AppendBlock(cache, *limited, records_.Block(id)).code(), 0);
    leases.push_back(Lease(*limited, id));
  }
  Stream large(cache, *limited), small(cache, *limited), neighbour(cache, *other);
  large.Send(Longer("large"));
  EXPECT_FALSE(large.answered());
  small.Send(records_.Block("small"));
  EXPECT_FALSE(small.answered()) << "would fit, but the large one of its run came first";
  neighbour.Send(records_.Block("x"));
  EXPECT_TRUE(neighbour.answered());
  EXPECT_EQ(neighbour.code(), StatusCode::kOk);

  // A wait of its own, behind the two in the queue: for the server's bytes.
  for (int i = 0; i < 7; ++i) {
    const std::string id = "filler" + std::to_string(i);
    AppendBlock(cache, *other, records_.Block(id));
    leases.push_back(Lease(*other, id));
  }
  Lease(*other, "x");
  neighbour.Send(records_.Block("y"));
  EXPECT_FALSE(neighbour.answered());
  other->EndLease(leases.back());
  queue.Serve();
  EXPECT_TRUE(neighbour.answered()) << "room for it, and none in the quota of the others";
  EXPECT_FALSE(large.answered());
  limited->EndLease(leases[0]);
  limited->EndLease(leases[1]);
  queue.Serve();
  EXPECT_TRUE(large.answered());
}

TEST_F(RoomQueueTest, ACancelledStreamLeavesNothingBehind) {
  const int64_t before = cache_.registry.budget().used();
  Stream waits(cache_, *run_), gone_before(cache_, *run_), in_its_turn(cache_, *run_);
  waits.Send(records_.Block("d"));
  waits.Cancel();
  EXPECT_EQ(waits.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(queue_.size(), 0);
  gone_before.Cancel();
  EXPECT_TRUE(gone_before.status().ok()) << "it may have ended by itself";
  gone_before.Send(records_.Block("d"));
  EXPECT_EQ(gone_before.status().code(), StatusCode::kCancelled);

  // The turn is one for an entry after which another has to wait.
  v1::AppendBatch batch;
  *batch.add_entries()->mutable_block() = records_.Block("d");
  *batch.add_entries()->mutable_block() = Longer("e");
  in_its_turn.Send(batch);
  in_its_turn.CancelInItsTurn();
  EXPECT_EQ(cache_.registry.budget().used(), before);
  run_->EndLease(leases_[0]);
  queue_.Serve();
  EXPECT_EQ(in_its_turn.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(queue_.size(), 0);
}

TEST_F(RoomQueueTest, AClosedQueueLetsNobodyWait) {
  Stream stream(cache_, *run_), late(cache_, *run_);
  stream.Send(records_.Block("d"));
  queue_.Close();
  EXPECT_EQ(stream.status().code(), StatusCode::kUnavailable);
  late.Send(records_.Block("d"));
  EXPECT_EQ(late.status().code(), StatusCode::kUnavailable);
  late.Send(records_.Block("a"));
  EXPECT_TRUE(late.answered());
}

// Streams come, wait, are cancelled and served while leases come and go. Meant for ThreadSanitizer.
TEST_F(RoomQueueTest, EveryStreamIsAnsweredOrEnds) {
  std::atomic<int> acked = 0;
  std::atomic<int> cancelled = 0;
  std::atomic<bool> stop = false;
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 150; ++i) {
      Stream stream(cache_, *run_);
      stream.Send(records_.Block(std::to_string(seed) + "-" + std::to_string(i)));
      if (random() % 4 == 0) stream.Cancel();
      while (!stream.answered() && !stream.ended()) std::this_thread::yield();
      if (stream.answered()) {
        acked += stream.code() == StatusCode::kOk;
      } else {
        EXPECT_EQ(stream.status().code(), StatusCode::kCancelled);
        ++cancelled;
      }
    }
  };
  std::vector<std::thread> workers;
  for (uint32_t seed = 1; seed <= 3; ++seed) workers.emplace_back(work, seed);
  std::thread janitor([&] {
    while (!stop) {
      queue_.Serve();
      EXPECT_LE(cache_.registry.budget().used(), cache_.registry.budget().limit());
    }
  });
  std::thread trainer([&] {
    while (!stop) {
      for (uint64_t& lease : leases_) {
        run_->EndLease(lease);
        std::this_thread::yield();
        // While all room is taken by what isn't yet there to be evicted, a lease is refused.
        const std::vector<SequenceName> names = {{"1-" + std::to_string(acked / 3), 0}};
        const absl::StatusOr<uint64_t> next = run_->Lease(names, absl::Hours(1));
        if (next.ok()) {
          lease = *next;
        } else {
          EXPECT_EQ(next.status().code(), StatusCode::kResourceExhausted);
        }
      }
    }
  });
  for (std::thread& worker : workers) worker.join();
  stop = true;
  janitor.join();
  trainer.join();
  EXPECT_GT(acked, 100);
  EXPECT_EQ(queue_.size(), 0);
  for (const uint64_t lease : leases_) run_->EndLease(lease);
  EXPECT_EQ(cache_.registry.Reclaim(*run_, cache_.registry.budget().limit(), Evict::kUnread),
            nullptr);
  EXPECT_EQ(cache_.registry.budget().used(), 0);
}

TEST_F(RoomQueueTest, ASupersededRunEndsWhoWaitsForIt) {
  Stream stream(cache_, *run_);
  stream.Send(records_.Block("d"));
  cache_.CreateRun("r", SmallConfig(kSlots), 2);
  queue_.Serve();
  EXPECT_EQ(stream.status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sis
