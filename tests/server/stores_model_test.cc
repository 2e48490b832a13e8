// Random operations on a real store, and of two servers on one that they share, with full disks,
// lost answers, restarts and kills, compared with the plainest model: what was answered is so,
// whatever happens then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "server/testing/backing.h"
#include "server/testing/faulty_store.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"
#include "server/testing/store_in_memory.h"

namespace sis {
namespace {

constexpr int kSlots = 2;
constexpr uint32_t kLength = 100;  // of a sequence, at most
constexpr int kVariants = 2;       // what a position may hold, each its own row
constexpr int kSequencesInPlay = 8;
constexpr uint64_t kMaxStaleness = 2;
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int kOperations = 400;
#else
constexpr int kOperations = 4000;
#endif

v1::RunConfig Config() {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(kMaxStaleness);
  return config;
}

struct ModelSequence {
  struct Recorded {
    int variant;
    uint64_t version;
  };
  std::string id;
  std::map<uint32_t, Recorded> positions = {};
  std::optional<uint32_t> sealed = {};
  v1::Annotation annotation = {};

  uint32_t length() const { return positions.empty() ? 0 : positions.rbegin()->first + 1; }
  absl::StatusCode Append(uint32_t first, uint32_t count, int variant, uint64_t version) {
    if (sealed.has_value() && first + count > *sealed) return absl::StatusCode::kFailedPrecondition;
    for (uint32_t p = first; p < first + count; ++p) {
      const auto there = positions.find(p);
      if (there == positions.end()) continue;
      const bool same = there->second.variant == variant && there->second.version == version;
      if (!same) return absl::StatusCode::kAlreadyExists;
    }
    for (uint32_t p = first; p < first + count; ++p) positions.insert({p, {variant, version}});
    return absl::StatusCode::kOk;
  }
  absl::StatusCode Seal(uint32_t at, const v1::Annotation& added) {
    const bool fits = sealed.has_value() ? *sealed == at : at >= length();
    if (!fits) return absl::StatusCode::kFailedPrecondition;
    sealed = at;
    annotation.MergeFrom(added);
    return absl::StatusCode::kOk;
  }
  bool IsStale(uint64_t version) const {
    return !positions.empty() && std::ranges::all_of(positions, [&](const auto& position) {
      return position.second.version + kMaxStaleness < version;
    });
  }
};

struct Setting {
  uint32_t seed;
  bool two_servers;
};

class StoresModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  StoresModelTest() {
    for (int server = 0; server < servers_; ++server) Start(server);
    for (int s = 0; s < kSequencesInPlay; ++s) sequences_.push_back(NewSequence());
  }

  void Start(int server) {
    fault_ = Fault::kNone;
    std::unique_ptr<Store> store =
        servers_ == 1 ? Open(backing_)
                      : std::make_unique<StoreInMemory>(maps_, absl::StrCat("server ", server));
    replicas_[server] = std::make_unique<Replica>(
        std::make_unique<FaultyStore>(std::move(store), fault_), Config());
    EXPECT_EQ(replicas_[server]->run().policy_version(), version_) << "operation " << operation_;
  }
  // Restarts any server.
  void Restart(bool kill) {
    const int server = AnyServer();
    if (kill) fault_ = Fault::kDown;  // from now on its calls have no effect
    replicas_[server].reset();
    Start(server);
  }
  int AnyServer() { return static_cast<int>(random_.Uniform(0, servers_ - 1)); }
  // A client may ask any of them, each time.
  Replica& AnyReplica() { return *replicas_[AnyServer()]; }

  // Calls until the answer is none of a store that fails, with a fault to begin with, perhaps, and
  // perhaps an end of the server while it lasts. `call` returns a status code.
  template <typename Call>
  absl::StatusCode UntilAnswered(const Call& call) {
    constexpr std::array kFaults = {Fault::kDown, Fault::kFull, Fault::kAnswersLost};
    if (OneIn(4)) fault_ = kFaults[random_.Uniform(0, kFaults.size() - 1)];
    for (int tries = 0;; ++tries) {
      const absl::StatusCode code = call();
      const bool failed =
          code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted;
      failures_ += failed;
      // An answered call must survive a restart of the server.
      if (OneIn(15)) Restart(OneIn(2));
      fault_ = Fault::kNone;
      if (!failed || tries == 1000) return code;
    }
  }

  void Change(ModelSequence& sequence);
  void Read(ModelSequence& sequence);
  void Release(ModelSequence& sequence);
  void AdvanceVersion();
  void ExpectGone(const ModelSequence& sequence, MissingReason reason) {
    const Run::Found found = AnyReplica().Find(sequence.id);
    // Another server may have all of it in memory, and needs the store no more.
    const auto* there = std::get_if<std::shared_ptr<Sequence>>(&found);
    if (servers_ > 1 && there != nullptr && (*there)->sealed()) return;
    EXPECT_EQ(found, Run::Found(reason)) << sequence.id << " operation " << operation_;
  }

  ModelSequence NewSequence() { return {.id = absl::StrCat("sequence ", names_++)}; }
  uint64_t DigestOf(uint32_t position, int variant) const {
    const std::vector<std::byte> block = *PackBlock(records_.View(position + variant * kLength, 1),
                                                    {.encoding = BlockEncoding::kFloat32,
                                                     .slots = kSlots,
                                                     .vocabulary_size = 1000,
                                                     .first_position = position});
    return sis::DigestOf(*OpenBlock(block, /*checksums=*/false), 0, 1);
  }
  bool OneIn(int n) { return random_.Uniform(0, n - 1) == 0; }

  const int servers_ = GetParam().two_servers ? 2 : 1;
  RecordGenerator random_{kSlots, 1000, GetParam().seed};
  const Records records_ = random_.NextRecords(kLength * kVariants);
  RocksDbBacking backing_;
  std::atomic<Fault> fault_ = Fault::kNone;
  StoreMaps maps_;
  std::array<std::unique_ptr<Replica>, 2> replicas_;

  uint64_t version_ = 0;
  std::vector<ModelSequence> sequences_;
  int names_ = 0;
  int operation_ = 0;
  int failures_ = 0;
  int annotated_ = 0;
};

void StoresModelTest::Change(ModelSequence& sequence) {
  v1::AppendEntry entry;
  absl::StatusCode expected = absl::StatusCode::kOk;
  if (!OneIn(15)) {
    const uint32_t first =
        OneIn(3) ? random_.Uniform(0, kLength - 1) : std::min(sequence.length(), kLength - 1);
    uint32_t count = std::min(random_.Uniform(1, 12), kLength - first);
    // Only the server that has a seal in memory refuses what comes behind it.
    if (servers_ > 1 && sequence.sealed.has_value()) {
      if (first >= *sequence.sealed) return;
      count = std::min(count, *sequence.sealed - first);
    }
    const int variant = OneIn(10) ? 1 : 0;
    const auto there = sequence.positions.find(first);
    const uint64_t version =
        there == sequence.positions.end() || OneIn(20) ? version_ : there->second.version;
    entry = records_.Block(sequence.id, first, version, first + variant * kLength, count)
                .Entry(Config());
    expected = sequence.Append(first, count, variant, version);
  } else {
    const uint32_t length = OneIn(2) ? sequence.sealed.value_or(sequence.length())
                                     : std::min(sequence.length() + random_.Uniform(0, 9), kLength);
    entry.mutable_sequence()->set_id(sequence.id);
    entry.mutable_seal()->set_length(length);
    v1::Annotation& annotation = *entry.mutable_seal()->mutable_annotation();
    if (OneIn(2)) annotation.set_reward(operation_);
    if (OneIn(2)) annotation.set_text(absl::StrCat("text ", operation_));
    expected = sequence.Seal(length, annotation);
  }
  std::string message;
  const absl::StatusCode code = UntilAnswered([&] {
    const v1::Ack ack = AnyReplica().Append(entry);
    message = ack.message();
    return static_cast<absl::StatusCode>(ack.code());
  });
  ASSERT_EQ(code, expected) << entry.ShortDebugString().substr(0, 80) << message << " operation "
                            << operation_;
}

void StoresModelTest::Read(ModelSequence& sequence) {
  const Run::Found found = AnyReplica().Find(sequence.id);
  const auto* there = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (there == nullptr) {
    EXPECT_TRUE(sequence.positions.empty()) << sequence.id << " operation " << operation_;
    return;
  }
  // A server that has all of a sequence in memory asks nobody for another annotation.
  if (servers_ == 1) {
    EXPECT_EQ((*there)->annotation(), sequence.annotation.SerializeAsString()) << sequence.id;
  }
  annotated_ += !(*there)->annotation().empty();
  const Sequence::Reader reader(**there);
  for (uint32_t p = 0; p < kLength; ++p) {
    const auto recorded = sequence.positions.find(p);
    const bool none = recorded == sequence.positions.end();
    ASSERT_EQ(reader.Digest(p, 1), none ? 0 : DigestOf(p, recorded->second.variant))
        << sequence.id << " position " << p << " operation " << operation_;
  }
}

void StoresModelTest::Release(ModelSequence& sequence) {
  const bool stored = !sequence.positions.empty() || sequence.sealed.has_value();
  if (OneIn(2)) AnyReplica().Keep(sequence.id, absl::Hours(1));
  const absl::StatusCode code =
      UntilAnswered([&] { return AnyReplica().Release({sequence.id}).status().code(); });
  ASSERT_EQ(code, absl::StatusCode::kOk) << "operation " << operation_;
  if (stored) ExpectGone(sequence, MissingReason::kReleased);
  sequence = NewSequence();
}

void StoresModelTest::AdvanceVersion() {
  const uint64_t next = version_ + 1;
  const absl::StatusCode code = UntilAnswered([&] {
    const absl::StatusCode answer = AnyReplica().AdvanceVersion(next).status().code();
    if (answer == absl::StatusCode::kOk) version_ = next;
    return answer;
  });
  ASSERT_EQ(code, absl::StatusCode::kOk) << "operation " << operation_;
  for (int server = 0; server < servers_; ++server) replicas_[server]->runs().TakeInShared();
  for (ModelSequence& sequence : sequences_) {
    if (!sequence.IsStale(version_)) continue;
    if (OneIn(2)) Restart(OneIn(2));
    // Dropped, or as a whole too old to count.
    const Run::Found found = AnyReplica().Find(sequence.id);
    if (!std::holds_alternative<std::shared_ptr<Sequence>>(found)) {
      EXPECT_EQ(found, Run::Found(MissingReason::kStale)) << "operation " << operation_;
    }
    sequence = NewSequence();
  }
}

TEST_P(StoresModelTest, WhatWasAnsweredIsSo) {
  for (operation_ = 1; operation_ <= kOperations && !HasFatalFailure() && !HasNonfatalFailure();
       ++operation_) {
    ModelSequence& sequence = sequences_[random_.Uniform(0, kSequencesInPlay - 1)];
    const uint32_t kind = random_.Uniform(0, 999);
    if (kind < 600) {
      Change(sequence);
    } else if (kind < 800) {
      Read(sequence);
    } else if (kind < 940) {
      AnyReplica().run().EvictOldest();
    } else if (kind < 985) {
      Release(sequence);
    } else if (kind < 995) {
      AdvanceVersion();
    } else {
      Restart(OneIn(2));
    }
  }
  EXPECT_GT(failures_, kOperations / 50);
  EXPECT_GT(annotated_, kOperations / 100);
  Restart(false);
  for (ModelSequence& sequence : sequences_) Read(sequence);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoresModelTest,
                         ::testing::Values(Setting{1, false}, Setting{2, false}, Setting{3, true},
                                           Setting{4, true}));

}  // namespace
}  // namespace sis
