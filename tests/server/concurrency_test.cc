// Everything at once on one small cache. Meant for ThreadSanitizer; without it, the bytes must
// still add up.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <random>
#include <thread>

#include "kernels/cuda/testing/host_stage.h"
#include "kernels/testing/scalar_backend.h"
#include "server/fetch/fetch.h"
#include "server/metrics/metric_families.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/evaluate_at_once.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 4;
constexpr uint32_t kLength = 200;
constexpr int kSequences = 12;
constexpr int kIterations = 400;

class ConcurrencyTest : public testing::Test {
 protected:
  ConcurrencyTest() {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_time_to_live_seconds(20);
    config.set_max_staleness(2);
    cache_.CreateRun("r", config);
  }

  std::shared_ptr<sis::Run> Find() { return *cache_.runs.Find(RefOf("r")); }
  // Ids move on with time: those that left the cache do not come back.
  std::string Id(std::mt19937& random) {
    return std::to_string(epoch_.load()) + "-" + std::to_string(random() % kSequences);
  }

  void Append(std::mt19937& random) {
    const auto run = Find();
    const auto first = static_cast<uint32_t>(random() % kLength);
    const auto count = static_cast<uint32_t>(1 + random() % (kLength - first));
    const v1::Ack ack =
        AppendBlock(cache_, *run,
                    records_.Block(Id(random), first, run->policy_version() / 2 * 2, first, count));
    ++acks_[ack.code()];
  }
  void Evaluate(std::mt19937& random) {
    v1::EvaluateRequest request;
    request.set_draw(random() % 100);
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id(Id(random));
    slice.set_first_position(static_cast<uint32_t>(random() % kLength));
    slice.set_length(static_cast<uint32_t>(1 + random() % (kLength - slice.first_position())));
    *request.mutable_gathered() = current_.Gathered(slice.first_position(), slice.length());
    const auto response = EvaluateAtOnce(*Find(), *backend_, request);
    ASSERT_TRUE(response.ok()) << response.status();
    const v1::Totals& totals = response->totals();
    EXPECT_EQ(totals.accepted() + totals.rejected() + totals.outside_top_k() + totals.missing(),
              slice.length());
    newly_counted_ += response->newly_counted();
  }
  void Fetch(std::mt19937& random) {
    const auto run = Find();
    v1::FetchTopKRequest request;
    request.add_slices()->mutable_sequence()->set_id(Id(random));
    request.add_slices()->mutable_sequence()->set_id(Id(random));
    request.set_keep_seconds(random() % 5);
    auto fetch = sis::Fetch::Open(run, request);
    ASSERT_TRUE(fetch.ok()) << fetch.status();
    v1::FetchTopKResponse message;
    while (fetch->Next(message)) continue;
  }
  void Control(std::mt19937& random) {
    const auto run = Find();
    switch (random() % 7) {
      case 0:
        run->Release({Id(random), 0});
        break;
      case 1:
        // Another thread may have been further.
        run->AdvanceVersion(run->policy_version() + 1).IgnoreError();
        break;
      case 2:
        cache_.clock.Advance(absl::Seconds(1));
        cache_.registry.DropExpired();
        break;
      case 3:
        ++epoch_;
        break;
      case 4:
        IngestEntry(cache_, *run, SealEntry(Id(random), kLength));
        break;
      case 5:
        CacheMetrics(cache_.registry);
        break;
      default:
        run->Describe();
        run->steps().Find(random() % 100);
    }
  }

  RecordGenerator generator_{kSlots, 1000, 51};
  const Records records_ = generator_.NextRecords(kLength);
  const CurrentValues current_ = generator_.NextCurrent(records_);
  // Keeps copies of a few blocks, on a device that works when it likes.
  const std::unique_ptr<const Backend> backend_ = cuda::BackendOnHostStages(
      std::make_unique<ScalarBackend>(), 3, size_t{4} << 10, cuda::When::kInAThread);
  Cache cache_{48 << 10};  // a whole sequence takes 6 KiB
  std::atomic<int> epoch_ = 0;
  std::atomic<uint64_t> newly_counted_ = 0;
  std::array<std::atomic<int>, 17> acks_{};
};

TEST_F(ConcurrencyTest, AllBytesAreAccountedFor) {
  std::atomic<bool> over_budget = false;
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kIterations; ++i) {
      switch ((random() + seed) % 4) {
        case 0:
        case 1:
          Append(random);
          break;
        case 2:
          Evaluate(random);
          break;
        default:
          random() % 2 == 0 ? Fetch(random) : Control(random);
      }
      if (cache_.registry.budget().used() > cache_.registry.budget().limit()) over_budget = true;
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(over_budget);
  EXPECT_GT(acks_[0], kIterations / 10) << "few appends came through";
  EXPECT_GT(newly_counted_, 0);

  const auto run = Find();
  EXPECT_EQ(run->budget().used(), cache_.registry.budget().used());
  for (int i = 0; i < 2; ++i) {
    cache_.clock.Advance(absl::Hours(1));  // past every deadline, then every time to live
    cache_.registry.DropExpired();
  }
  EXPECT_EQ(run->Describe().kept_sequences, 0);
  EXPECT_EQ(run->Describe().sequences, 0);
  EXPECT_EQ(cache_.registry.budget().used(), 0);
}

// The annotations of two concurrent seals are both kept.
TEST_F(ConcurrencyTest, NoAnnotationIsLost) {
  constexpr int kSealed = 1000;
  Cache cache;
  const auto run = cache.CreateRun("r", SmallConfig(kSlots));
  std::barrier together(2);
  const auto seal = [&](const auto& annotate) {
    for (int i = 0; i < kSealed; ++i) {
      v1::AppendEntry entry = SealEntry(std::to_string(i), 0);
      annotate(*entry.mutable_seal()->mutable_annotation());
      together.arrive_and_wait();
      EXPECT_EQ(IngestEntry(cache, *run, std::move(entry)).code(), 0);
    }
  };
  std::thread other([&] { seal([](v1::Annotation& it) { it.set_reward(1); }); });
  seal([](v1::Annotation& it) { it.set_text("4"); });
  other.join();
  for (int i = 0; i < kSealed; ++i) {
    const Run::Found found = run->Find({std::to_string(i), 0});
    v1::Annotation annotation;
    ASSERT_TRUE(annotation.ParseFromString(std::get<0>(found)->annotation()));
    ASSERT_TRUE(annotation.has_reward() && annotation.text() == "4") << i;
  }
}

// Incarnations follow each other under the feet of those who append and read.
TEST_F(ConcurrencyTest, SupersededRunsGiveEverythingBack) {
  std::atomic<bool> stop = false;
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    while (!stop) {
      const auto run = Find();
      absl::StatusOr<Ingest> ingest = Ingest::Open(cache_.runs, HeaderOf(*run));
      ASSERT_TRUE(ingest.ok());
      v1::AppendBatch batch;
      *batch.add_entries() = EntryOf(*run, records_.Block(Id(random)));
      ApplyAtOnce(*ingest, batch).IgnoreError();
      Fetch(random);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
  for (uint64_t incarnation = 2; incarnation < 100; ++incarnation) {
    cache_.CreateRun("r", SmallConfig(kSlots), incarnation);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  cache_.CreateRun("r", SmallConfig(kSlots), 100);
  EXPECT_EQ(cache_.registry.budget().used(), 0);
}

}  // namespace
}  // namespace sis
