// The cache in front of a store that fails now and then, alone and beside another replica.
#include "server/store/stored_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/records/record_digest.h"
#include "server/append/ingest.h"
#include "server/store/log_store.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 2;

// What several replicas see: a map that can be made to fail.
struct Fleet {
  enum class Fault { kNone, kDown, kAnswersLost };

  bool shared = true;

  Mutex mutex;
  std::map<std::string, std::string> items ABSL_GUARDED_BY(mutex);
  Fault fault ABSL_GUARDED_BY(mutex) = Fault::kNone;
  int64_t gets ABSL_GUARDED_BY(mutex) = 0;
  absl::Duration slowness;  // of every get

  void Set(Fault to) {
    WriterLock lock(mutex);
    fault = to;
  }
};

class FleetItems final : public ItemStore {
 public:
  explicit FleetItems(Fleet& fleet) : fleet_(fleet) {}
  std::string_view name() const override { return "fleet"; }
  bool forgets() const override { return fleet_.shared; }
  bool shared() const override { return fleet_.shared; }

  std::vector<absl::Status> Add(std::span<const Item> items) override {
    WriterLock lock(fleet_.mutex);
    std::vector<absl::Status> statuses;
    for (const Item& item : items) {
      const bool down = fleet_.fault == Fleet::Fault::kDown;
      const bool added = !down && fleet_.items.emplace(item.key.key, item.value).second;
      statuses.push_back(fleet_.fault != Fleet::Fault::kNone ? absl::UnavailableError("no answer")
                         : added                             ? absl::OkStatus()
                                                             : absl::AlreadyExistsError(""));
    }
    return statuses;
  }
  absl::Status Put(std::span<const Item> items) override {
    WriterLock lock(fleet_.mutex);
    if (fleet_.fault == Fleet::Fault::kDown) return absl::UnavailableError("no answer");
    for (const Item& item : items) fleet_.items[item.key.key] = item.value;
    return absl::OkStatus();
  }
  absl::Status Swap(const Item& item, const std::optional<std::string>& expected) override {
    WriterLock lock(fleet_.mutex);
    if (fleet_.fault == Fleet::Fault::kDown) return absl::UnavailableError("no answer");
    const auto found = fleet_.items.find(item.key.key);
    const bool there = found != fleet_.items.end();
    if (there != expected.has_value() || (there && found->second != *expected)) {
      return absl::AbortedError("");
    }
    fleet_.items[item.key.key] = item.value;
    return absl::OkStatus();
  }
  std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) override {
    absl::SleepFor(fleet_.slowness);
    WriterLock lock(fleet_.mutex);
    std::vector<absl::StatusOr<std::string>> values;
    for (const ItemKey& key : keys) {
      ++fleet_.gets;
      const auto found = fleet_.items.find(key.key);
      if (fleet_.fault == Fleet::Fault::kDown) {
        values.push_back(absl::UnavailableError("no answer"));
      } else if (found == fleet_.items.end()) {
        values.push_back(absl::NotFoundError(""));
      } else {
        values.push_back(found->second);
      }
    }
    return values;
  }
  absl::StatusOr<size_t> Remove(std::span<const ItemKey> keys) override {
    WriterLock lock(fleet_.mutex);
    if (fleet_.fault == Fleet::Fault::kDown) return absl::UnavailableError("no answer");
    size_t removed = 0;
    for (const ItemKey& key : keys) removed += fleet_.items.erase(key.key);
    return removed;
  }
  absl::Status RemoveRange(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::Status Scan(
      const std::string&,
      const std::function<std::string(std::string_view, std::string_view)>&) override {
    return absl::OkStatus();
  }

 private:
  Fleet& fleet_;
};

// One server's cache over the fleet, with the run "run" in it.
class Replica {
 public:
  explicit Replica(Fleet& fleet) : store_(std::make_unique<FleetItems>(fleet)) {
    v1::CreateRunRequest request;
    request.set_run_id("run");
    *request.mutable_config() = LosslessConfig(kSlots);
    const absl::StatusOr<RunRegistry::Created> created = runs_.Create(request);
    EXPECT_TRUE(created.ok()) << created.status();
    run_ = created->run;
  }

  Run& run() { return *run_; }
  StoredCache& stored() { return stored_; }

  v1::Ack Append(const v1::AppendEntry& entry) {
    v1::AppendBatch batch;
    *batch.add_entries() = entry;
    absl::StatusOr<Ingest> ingest = Ingest::Open(runs_, room_queue_, HeaderOf(*run_));
    EXPECT_TRUE(ingest.ok()) << ingest.status();
    const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(*ingest, batch);
    EXPECT_TRUE(response.ok()) << response.status();
    return response->acks(0);
  }
  v1::Ack AppendBlock(const v1::Block& block) {
    v1::AppendEntry entry;
    *entry.mutable_block() = block;
    return Append(entry);
  }

 private:
  ManualClock clock_;
  std::unique_ptr<Arena> arena_ = *Arena::Map(int64_t{1} << 26);
  LogStore store_;
  RunRegistry registry_{int64_t{1} << 26, *arena_, {}, [this] { return clock_.Now(); }};
  StoredCache stored_{store_, registry_, [this] { return clock_.Now(); }};
  StoredRuns runs_{registry_, &stored_};
  RoomQueue room_queue_{registry_, absl::ZeroDuration(), [this] { return clock_.Now(); }};
  std::shared_ptr<Run> run_;
};

uint64_t DigestOf(const Records& records, uint32_t row, uint32_t position) {
  const RecordView view = records.View(row, 1);
  return PositionDigest(position, view.sampled_ids[0], view.sampled_log_probs[0], view.ids,
                        view.log_probs);
}

uint64_t DigestAt(const Run::Found& found, uint32_t first, uint32_t count) {
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
  return sequence == nullptr ? 0 : Sequence::Reader(**sequence).Digest(first, count);
}

absl::StatusCode CodeOf(const v1::Ack& ack) { return static_cast<absl::StatusCode>(ack.code()); }

TEST(StoredCacheTest, WhatWasEvictedIsReadOnceWhoeverAsks) {
  Fleet fleet;
  const Records records = RecordGenerator(kSlots, 1000, 1).NextRecords(500);
  uint64_t digest = 0;
  {
    Replica writer(fleet);  // seals behind, until it goes
    ASSERT_EQ(writer.AppendBlock(records.Block("a")).code(), 0);
    digest = DigestAt(writer.stored().Find(writer.run(), {"a", 0}, 0, 500), 0, 500);
    v1::AppendEntry seal;
    seal.mutable_seal()->mutable_sequence()->set_id("a");
    seal.mutable_seal()->set_length(500);
    ASSERT_EQ(writer.Append(seal).code(), 0);
  }
  EXPECT_NE(digest, 0);

  const auto gets = [&] {
    WriterLock lock(fleet.mutex);
    return fleet.gets;
  };
  const auto read_by = [&](int threads) {
    Replica fresh(fleet);
    const int64_t start = gets();
    std::vector<std::thread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] {
        EXPECT_EQ(DigestAt(fresh.stored().Find(fresh.run(), {"a", 0}, 0, 500), 0, 500), digest);
      });
    }
    for (std::thread& reader : readers) reader.join();
    return gets() - start;
  };
  const int64_t once = read_by(1);
  fleet.slowness = absl::Milliseconds(5);  // for all to come while the first reads
  EXPECT_EQ(read_by(8), once);
}

TEST(StoredCacheTest, WhatCanNotBeStoredIsNotAckedUntilItCan) {
  Fleet fleet;
  Replica replica(fleet), other(fleet);
  const Records records = RecordGenerator(kSlots, 1000, 2).NextRecords(10);
  for (const Fleet::Fault fault : {Fleet::Fault::kDown, Fleet::Fault::kAnswersLost}) {
    const std::string id = absl::StrCat("sequence ", static_cast<int>(fault));
    ASSERT_EQ(replica.AppendBlock(records.Block(id, 0, 0, 0, 5)).code(), 0);
    fleet.Set(fault);
    for (int again = 0; again < 2; ++again) {
      const v1::Ack refused = replica.AppendBlock(records.Block(id, 5, 0, 5, 5));
      EXPECT_EQ(CodeOf(refused), absl::StatusCode::kUnavailable);
      EXPECT_GT(refused.retry_seconds(), 0);
    }
    fleet.Set(Fleet::Fault::kNone);
    EXPECT_EQ(replica.AppendBlock(records.Block(id, 5, 0, 5, 5)).code(), 0);
    uint64_t digest = 0;
    for (uint32_t p = 0; p < 10; ++p) digest += DigestOf(records, p, p);
    EXPECT_EQ(DigestAt(other.stored().Find(other.run(), {id, 0}, 0, 10), 0, 10), digest);
  }
}

TEST(StoredCacheTest, AStoreThatDoesNotAnswerIsAReason) {
  Fleet fleet;
  Replica replica(fleet), other(fleet), third(fleet);
  const Records records = RecordGenerator(kSlots, 1000, 3).NextRecords(10);
  ASSERT_EQ(replica.AppendBlock(records.Block("a")).code(), 0);
  fleet.Set(Fleet::Fault::kDown);
  EXPECT_EQ(other.stored().Find(other.run(), {"a", 0}, 0, 10),
            Run::Found(MissingReason::kStoreDown));
  EXPECT_NE(DigestAt(replica.stored().Find(replica.run(), {"a", 0}, 0, 10), 0, 10), 0);
  fleet.Set(Fleet::Fault::kNone);
  EXPECT_NE(DigestAt(other.stored().Find(other.run(), {"a", 0}, 0, 10), 0, 10), 0);
  {
    WriterLock lock(fleet.mutex);
    for (auto& [key, value] : fleet.items) value[value.size() / 2] ^= 1;
  }
  EXPECT_EQ(third.stored().Find(third.run(), {"a", 0}, 0, 10), Run::Found(MissingReason::kCorrupt));
}

TEST(StoredCacheTest, WhatWasAckedIsThereWhoeverWritesAtTheSameTime) {
  constexpr uint32_t kWriters = 4, kBlocks = 40, kSequences = 3;
  Fleet fleet;
  const Records records = RecordGenerator(kSlots, 1000, 5).NextRecords(kWriters * kBlocks);
  {
    Replica replicas[] = {Replica(fleet), Replica(fleet)};
    std::vector<std::thread> writers;
    for (uint32_t w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        Replica& replica = replicas[w % 2];
        for (uint32_t n = 0; n < kBlocks; ++n) {
          const uint32_t position = n * kWriters + w;
          for (uint32_t s = 0; s < kSequences; ++s) {
            const v1::Block block = records.Block(absl::StrCat(s), position, 0, position, 1);
            EXPECT_EQ(CodeOf(replica.AppendBlock(block)), absl::StatusCode::kOk);
          }
          replica.run().EvictOldest();
          replica.stored().Find(replica.run(), {"0", 0}, 0, position);
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
  }
  Replica reader(fleet);
  for (uint32_t s = 0; s < kSequences; ++s) {
    const Run::Found found = reader.stored().Find(reader.run(), {absl::StrCat(s), 0}, 0, 0);
    for (uint32_t p = 0; p < kWriters * kBlocks; ++p) {
      ASSERT_EQ(DigestAt(found, p, 1), DigestOf(records, p, p)) << "position " << p;
    }
  }
}

// What a sequence should be, in the plainest form.
struct Model {
  static constexpr uint32_t kLength = 60;
  static constexpr int kVariants = 2;  // what a position may hold, each its own row

  std::vector<int> variants = std::vector<int>(kLength, -1);
  std::optional<uint32_t> sealed;
  bool released = false;

  uint32_t committed() const {
    uint32_t length = kLength;
    while (length > 0 && variants[length - 1] < 0) --length;
    return length;
  }
  absl::StatusCode Append(uint32_t first, uint32_t count, int variant) {
    if (released || (sealed.has_value() && first + count > *sealed)) {
      return absl::StatusCode::kFailedPrecondition;
    }
    for (uint32_t p = first; p < first + count; ++p) {
      if (variants[p] >= 0 && variants[p] != variant) return absl::StatusCode::kAlreadyExists;
    }
    std::fill_n(variants.begin() + first, count, variant);
    return absl::StatusCode::kOk;
  }
  absl::StatusCode Truncate(uint32_t length) {
    if (released || sealed.has_value()) return absl::StatusCode::kFailedPrecondition;
    std::fill(variants.begin() + length, variants.end(), -1);
    return absl::StatusCode::kOk;
  }
  absl::StatusCode Seal(uint32_t length) {
    const bool other = sealed.has_value() ? *sealed != length : length < committed();
    if (released || other) return absl::StatusCode::kFailedPrecondition;
    sealed = length;
    return absl::StatusCode::kOk;
  }
};

// Any replica, any order, any fault, any restart: what is acked is what the model says, and what is
// read is what was acked.
class ModelTest : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Replicas, ModelTest, ::testing::Values(1, 2));

TEST_P(ModelTest, ReplicasAgreeWithIt) {
  const uint32_t count_of_replicas = GetParam();
  constexpr int kOperations = 40000;
  constexpr int kSequences = 6;
  Fleet fleet;
  fleet.shared = count_of_replicas > 1;
  RecordGenerator random(kSlots, 1000, 4);
  const Records records = random.NextRecords(Model::kLength * Model::kVariants);
  std::vector<std::unique_ptr<Replica>> replicas;
  for (uint32_t r = 0; r < count_of_replicas; ++r) {
    replicas.push_back(std::make_unique<Replica>(fleet));
  }
  std::vector<Model> models(kSequences);
  std::vector<int> generation(kSequences, 0);

  for (int n = 0; n < kOperations; ++n) {
    const uint32_t s = random.Uniform(0, kSequences - 1);
    Model& model = models[s];
    const std::string id = absl::StrCat("sequence ", s, " of ", generation[s]);
    Replica& replica = *replicas[random.Uniform(0, count_of_replicas - 1)];
    const uint32_t first = random.Uniform(0, Model::kLength - 1);
    const uint32_t count = random.Uniform(1, Model::kLength - first);
    v1::AppendEntry entry;
    absl::StatusCode expected = absl::StatusCode::kOk;
    const uint32_t dice = random.Uniform(0, 99);
    if (dice < 50) {
      const int variant = random.Uniform(0, 9) == 0 ? 1 : 0;
      const uint32_t rows = std::min<uint32_t>(count, 6);
      *entry.mutable_block() = records.Block(id, first, 0, first + variant * Model::kLength, rows);
      expected = model.Append(first, rows, variant);
    } else if (dice < 55) {
      entry.mutable_truncate()->mutable_sequence()->set_id(id);
      entry.mutable_truncate()->set_length(first);
      expected = model.Truncate(first);
    } else if (dice < 57) {
      entry.mutable_seal()->mutable_sequence()->set_id(id);
      entry.mutable_seal()->set_length(first);
      expected = model.Seal(first);
    } else if (dice < 75) {
      const Run::Found found = replica.stored().Find(replica.run(), {id, 0}, first, count);
      for (uint32_t p = first; p < first + count; ++p) {
        const int variant = model.variants[p];
        ASSERT_EQ(DigestAt(found, p, 1),
                  variant < 0 ? 0 : DigestOf(records, p + variant * Model::kLength, p))
            << id << " position " << p << " operation " << n;
      }
      continue;
    } else if (dice < 90) {
      replica.run().EvictOldest();
      continue;
    } else if (dice < 92) {
      std::unique_ptr<Replica>& restarted = replicas[random.Uniform(0, count_of_replicas - 1)];
      restarted.reset();
      restarted = std::make_unique<Replica>(fleet);
      continue;
    } else if (dice < 93) {
      // Released for good; others come in its place.
      for (const auto& each : replicas) {
        if (!each->run().Release({id, 0})) each->stored().Release(each->run(), {id, 0});
        EXPECT_EQ(each->stored().Find(each->run(), {id, 0}, 0, 1),
                  Run::Found(MissingReason::kReleased));
      }
      model = Model();
      ++generation[s];
      continue;
    } else {
      continue;
    }

    const uint32_t fault = random.Uniform(0, 9);
    if (fault == 0) fleet.Set(Fleet::Fault::kDown);
    if (fault == 1) fleet.Set(Fleet::Fault::kAnswersLost);
    absl::StatusCode code = CodeOf(replica.Append(entry));
    fleet.Set(Fleet::Fault::kNone);
    for (int again = 0; again < 3 && code == absl::StatusCode::kUnavailable; ++again) {
      code = CodeOf(replica.Append(entry));
    }
    ASSERT_EQ(code, expected) << entry.ShortDebugString().substr(0, 80) << " operation " << n;
  }
}

}  // namespace
}  // namespace sis
