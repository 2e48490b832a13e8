// Random operations compared with the plainest model: what was answered is so, whatever happens
// then. One server works in memory or before a real store, and two servers share a store. Memory is
// short, disks are full, answers are lost, and servers restart or are killed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/decide/simd_backend.h"
#include "kernels/numerics/sequence_key.h"
#include "kernels/testing/scalar_backend.h"
#include "server/fetch/fetch.h"
#include "server/messages/step_message.h"
#include "server/testing/backing.h"
#include "server/testing/evaluate_at_once.h"
#include "server/testing/faulty_store.h"
#include "server/testing/record_generator.h"
#include "server/testing/redis_servers.h"
#include "server/testing/replica.h"

namespace sis {
namespace {

constexpr uint32_t kLength = 100;  // of a sequence, at most
constexpr int kVariants = 2;       // what a position may hold, each its own row
constexpr int kSequencesInPlay = 8;
constexpr uint64_t kMaxStaleness = 2;
constexpr absl::Duration kTimeToLive = absl::Seconds(60);
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int kShare = 20;  // runs one operation in kShare
#else
constexpr int kShare = 1;
#endif

struct ModelSequence {
  struct Recorded {
    int variant;
    uint64_t version;
  };
  std::string id;
  std::map<uint32_t, Recorded> positions = {};
  std::optional<uint32_t> sealed = {};
  v1::Annotation annotation = {};
  // Its last use, by the number of uses before and by the clock.
  int64_t use = 0;
  absl::Time used = {};
  std::optional<absl::Time> kept_until = {};

  bool is_there() const { return !positions.empty() || sealed.has_value(); }
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

enum class Where { kMemory, kRocksDb, kRedis };  // the last with two servers

struct Setting {
  std::string name;
  Where where;
  uint32_t seed;
  int slots = 2;
  v1::LogProbEncoding encoding = v1::LOG_PROB_ENCODING_FLOAT32;
  bool device = false;  // that keeps copies of a few blocks
};

class ModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  ModelTest() {
    if (where_ == Where::kRedis) redis_.emplace();
    for (uint32_t row = 0; row < kLength * kVariants; ++row) {
      const auto encoding = config_.log_prob_encoding() == v1::LOG_PROB_ENCODING_FLOAT32
                                ? BlockEncoding::kFloat32
                                : BlockEncoding::kFixed16;
      packed_.push_back(*PackBlock(records_.View(row, 1), {.encoding = encoding,
                                                           .slots = records_.slots,
                                                           .vocabulary_size = 1000,
                                                           .first_position = row % kLength}));
    }
    for (int server = 0; server < servers_; ++server) Start(server);
    for (int s = 0; s < kSequencesInPlay; ++s) sequences_.push_back(NewSequence());
  }

  static v1::RunConfig Config() {
    v1::RunConfig config = SmallConfig(GetParam().slots);
    config.set_log_prob_encoding(GetParam().encoding);
    config.set_max_staleness(kMaxStaleness);
    config.set_evict_unread(true);
    if (GetParam().where == Where::kMemory) {
      config.set_time_to_live_seconds(absl::ToDoubleSeconds(kTimeToLive));
      config.set_byte_quota(Quota());
    }
    return config;
  }
  // Room for three long sequences, or some short ones. A version begins a block.
  static int64_t Quota() {
    constexpr int kVersions = 8;
    return 3 * (Sequence::kBaseBytes + kVersions * CachedBlock::Charge(sizeof(BlockHeader)) +
                int64_t{kLength} * (8 + 4 * GetParam().slots));
  }

  void Start(int server) {
    faults_.fault = Fault::kNone;
    std::unique_ptr<Store> store;
    if (where_ == Where::kRocksDb) store = Open(backing_);
    if (where_ == Where::kRedis) store = *OpenStore(redis_->address(), absl::StrCat(server));
    if (store != nullptr) store = std::make_unique<FaultyStore>(std::move(store), faults_);
    replicas_[server] = std::make_unique<Replica>(std::move(store), config_);
    EXPECT_EQ(replicas_[server]->run().policy_version(), version_) << "operation " << operation_;
  }
  // Restarts any server.
  void Restart(bool kill) {
    const int server = AnyServer();
    if (kill) faults_.fault = Fault::kDown;  // from now on its calls have no effect
    replicas_[server].reset();
    if (where_ == Where::kMemory) {
      version_ = 0;
      for (ModelSequence& sequence : sequences_) sequence = NewSequence();
    }
    Start(server);
  }
  int AnyServer() { return static_cast<int>(random_.Uniform(0, servers_ - 1)); }
  // A client may ask any of them, each time.
  Replica& AnyReplica() { return *replicas_[AnyServer()]; }
  absl::Time Now() { return replicas_[0]->clock().Now(); }

  // Calls until the answer is none of a store that fails, with a fault to begin with, perhaps, and
  // perhaps an end of the server while it lasts. `call` returns a status code.
  template <typename Call>
  absl::StatusCode UntilAnswered(const Call& call) {
    if (where_ == Where::kMemory) return call();
    constexpr std::array kFaults = {Fault::kDown, Fault::kFull, Fault::kAnswersLost};
    if (OneIn(4)) faults_.fault = kFaults[random_.Uniform(0, kFaults.size() - 1)];
    for (int tries = 0;; ++tries) {
      const absl::StatusCode code = call();
      const bool failed =
          code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted;
      failures_ += failed;
      // An answered call must survive a restart of the server.
      if (OneIn(15)) Restart(OneIn(2));
      faults_.fault = Fault::kNone;
      if (!failed || tries == 1000) return code;
    }
  }

  void Change(ModelSequence& sequence);
  void Read(ModelSequence& sequence);
  void Evaluate(ModelSequence& first, ModelSequence& second);
  void Release(ModelSequence& sequence);
  void AdvanceVersion();
  void PassTime();
  void Settle();
  void Use(ModelSequence& sequence) {
    sequence.use = ++uses_;
    sequence.used = Now();
  }
  void Keep(ModelSequence& sequence) {
    const absl::Duration length = absl::Seconds(random_.Uniform(1, 100));
    AnyReplica().Keep(sequence.id, length);
    if (where_ != Where::kMemory || !sequence.is_there()) return;
    Use(sequence);
    sequence.kept_until = std::max(sequence.kept_until.value_or(Now()), Now() + length);
  }
  // Expects that the sequence has gone for this reason, and that it takes no more entries.
  void Forget(ModelSequence& sequence, MissingReason reason) {
    const std::string what = absl::StrCat(sequence.id, " operation ", operation_);
    const v1::AppendEntry entry = records_.Block(sequence.id, 0, version_, 0, 1).Entry(config_);
    const Run::Found found = AnyReplica().Find(sequence.id);
    const auto* there = std::get_if<std::shared_ptr<Sequence>>(&found);
    // Another server may have all of it in memory, and needs the store no more.
    if (servers_ == 1 || there == nullptr || !(*there)->sealed()) {
      EXPECT_EQ(found, Run::Found(reason)) << what;
    }
    if (servers_ == 1) {
      EXPECT_EQ(AnyReplica().Append(entry).code(),
                static_cast<int>(absl::StatusCode::kFailedPrecondition))
          << what;
    }
    sequence = NewSequence();
  }

  ModelSequence NewSequence() { return {.id = absl::StrCat("sequence ", names_++)}; }
  uint32_t RowOf(uint32_t position, const ModelSequence::Recorded& recorded) const {
    return position + recorded.variant * kLength;
  }
  BlockView Packed(uint32_t row) const { return *OpenBlock(packed_[row], /*checksums=*/false); }
  // Why the position has no record that counts.
  std::optional<MissingReason> MissingAt(const ModelSequence& sequence, uint32_t position) const {
    const auto recorded = sequence.positions.find(position);
    if (recorded == sequence.positions.end()) return MissingReason::kNeverArrived;
    const bool stale = recorded->second.version + kMaxStaleness < version_;
    return stale ? std::optional(MissingReason::kStale) : std::nullopt;
  }
  uint64_t DigestOf(const ModelSequence& sequence) const {
    uint64_t digest = 0;
    for (const auto& [position, recorded] : sequence.positions) {
      if (MissingAt(sequence, position).has_value()) continue;
      digest += sis::DigestOf(Packed(RowOf(position, recorded)), 0, 1);
    }
    return digest;
  }
  // Compares the ranges of whole sequences, one after the other.
  template <typename Message>
  void ExpectMissing(const Message& message, const std::vector<const ModelSequence*>& asked) const {
    std::map<uint32_t, v1::MissingReason> missing, expected;
    for (const v1::MissingRange& range : message.missing()) {
      const uint32_t first = range.slice() * kLength + range.first_position();
      for (uint32_t p = first; p < first + range.length(); ++p) missing[p] = range.reason();
    }
    for (uint32_t i = 0; i < asked.size(); ++i) {
      for (uint32_t p = 0; p < kLength; ++p) {
        const auto reason = MissingAt(*asked[i], p);
        if (reason.has_value()) {
          expected[i * kLength + p] = static_cast<v1::MissingReason>(*reason);
        }
      }
    }
    EXPECT_EQ(missing, expected) << asked[0]->id << " operation " << operation_;
  }
  bool OneIn(int n) { return random_.Uniform(0, n - 1) == 0; }

  const Where where_ = GetParam().where;
  const int servers_ = where_ == Where::kRedis ? 2 : 1;
  const v1::RunConfig config_ = Config();
  RecordGenerator random_{GetParam().slots, 1000, GetParam().seed};
  const Records records_ = random_.NextRecords(kLength * kVariants);
  const CurrentValues current_ = random_.NextCurrent(records_);
  std::vector<std::vector<std::byte>> packed_;  // each row, as it is recorded
  const std::unique_ptr<const Backend> backend_ =
      GetParam().device ? cuda::BackendOnHostStages(std::make_unique<SimdBackend>(), 3,
                                                    size_t{4} << 10, cuda::When::kLate)
                        : std::unique_ptr<const Backend>(std::make_unique<SimdBackend>());
  RocksDbBacking backing_;
  std::optional<RedisServers> redis_;
  Faults faults_;
  std::array<std::unique_ptr<Replica>, 2> replicas_;

  uint64_t version_ = 0;
  std::vector<ModelSequence> sequences_;
  int64_t uses_ = 0;
  int names_ = 0;
  int operation_ = 0;
  int failures_ = 0, annotated_ = 0, evicted_ = 0, expired_ = 0, stale_ = 0;
};

void ModelTest::Change(ModelSequence& sequence) {
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
                .Entry(config_);
    if (OneIn(80)) {
      entry.mutable_block()->back() ^= 1;
      expected = absl::StatusCode::kInvalidArgument;
    } else {
      expected = sequence.Append(first, count, variant, version);
    }
  } else {
    const uint32_t length = OneIn(2) ? sequence.sealed.value_or(sequence.length())
                                     : std::min(sequence.length() + random_.Uniform(0, 9), kLength);
    entry = SealEntry(sequence.id, length);
    v1::Annotation& annotation = *entry.mutable_seal()->mutable_annotation();
    if (OneIn(2)) annotation.set_reward(operation_);
    if (OneIn(2)) annotation.set_text(absl::StrCat("text ", operation_));
    expected = sequence.Seal(length, annotation);
  }
  v1::Ack ack;
  const absl::StatusCode code = UntilAnswered([&] {
    ack = AnyReplica().Append(entry);
    return static_cast<absl::StatusCode>(ack.code());
  });
  ASSERT_EQ(code, expected) << entry.ShortDebugString().substr(0, 80) << ack.message()
                            << " operation " << operation_;
  if (servers_ == 1) {
    EXPECT_EQ(ack.committed_length(), sequence.length()) << "operation " << operation_;
  }
  Use(sequence);
}

void ModelTest::Read(ModelSequence& sequence) {
  if (!sequence.is_there()) {
    EXPECT_EQ(AnyReplica().Find(sequence.id), Run::Found(MissingReason::kNeverArrived));
    return;
  }
  Replica& replica = AnyReplica();
  const Run::Found found = replica.Find(sequence.id);
  const auto* there = std::get_if<std::shared_ptr<Sequence>>(&found);
  ASSERT_NE(there, nullptr) << sequence.id << " operation " << operation_;
  // A server that has all of a sequence in memory asks nobody for another annotation.
  if (servers_ == 1) {
    EXPECT_EQ((*there)->annotation(), sequence.annotation.SerializeAsString()) << sequence.id;
  }
  annotated_ += !(*there)->annotation().empty();
  v1::FetchTopKRequest request;
  request.set_whole_blocks(true);
  v1::Slice& slice = *request.add_slices();
  slice.mutable_sequence()->set_id(sequence.id);
  slice.set_length(kLength);
  v1::FetchTopKResponse message;
  ASSERT_TRUE(Fetch::Open(replica.shared_run(), request)->Next(message));
  const v1::FetchedSlice& fetched = message.slices(0);
  uint64_t digest = 0;
  for (const std::string& bytes : fetched.blocks()) {
    const BlockView block = *OpenBlock(std::as_bytes(std::span(bytes)), /*checksums=*/true);
    digest += sis::DigestOf(block, 0, block.header.positions);
  }
  EXPECT_EQ(digest, DigestOf(sequence)) << sequence.id << " operation " << operation_;
  EXPECT_EQ(fetched.record_digest(), digest);
  ExpectMissing(fetched, {&sequence});
  Use(sequence);
}

// As the scalar backend decides each position alone.
void ModelTest::Evaluate(ModelSequence& first, ModelSequence& second) {
  std::vector<const ModelSequence*> asked;
  v1::EvaluateRequest request;
  request.set_draw(operation_);
  request.add_outputs(v1::OUTPUT_DECISIONS);
  std::string decisions;
  Sums sums;
  const bool wrong_digest = OneIn(20) && first.is_there();
  for (ModelSequence* sequence : {&first, &second}) {
    if (!sequence->is_there() || std::ranges::count(asked, sequence) > 0) continue;
    asked.push_back(sequence);
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id(sequence->id);
    slice.set_length(kLength);
    slice.set_record_digest(wrong_digest ? 12345 : DigestOf(*sequence));
    for (uint32_t p = 0; p < kLength; ++p) {
      const auto recorded = sequence->positions.find(p);
      const bool missing = MissingAt(*sequence, p).has_value();
      const uint32_t row = missing ? p : RowOf(p, recorded->second);
      const v1::Gathered current = current_.Gathered(row, 1);
      *request.mutable_gathered()->mutable_counts() += current.counts();
      *request.mutable_gathered()->mutable_log_probs() += current.log_probs();
      *request.mutable_gathered()->mutable_sampled_log_probs() += current.sampled_log_probs();
      Decision decision = Decision::kMissing;
      sums.missing += missing;
      if (!missing) {
        std::vector<float> log_probs(current.counts()[0]);
        std::memcpy(log_probs.data(), current.log_probs().data(), current.log_probs().size());
        const BackendRange range{
            .sequence_key = SequenceKey(config_.seed(), 0, sequence->id),
            .first_position = p,
            .behavior = BlockRange(Packed(row), 0, 1),
            .current = {.sampled_log_probs = {&current_.sampled_log_probs[row], 1},
                        .log_probs = log_probs},
            .output = {.decisions = {&decision, 1}},
            .sums = &sums};
        ScalarBackend().Evaluate({.top_k = GetParam().slots, .draw = request.draw()}, {&range, 1});
      }
      decisions.push_back(static_cast<char>(decision));
    }
    Use(*sequence);
  }
  if (asked.empty()) return;
  sis::Run& run = AnyReplica().run();
  for (const uint64_t counted : {decisions.size(), size_t{0}}) {  // a retry counts nothing
    const auto response = EvaluateAtOnce(run, *backend_, request);
    if (wrong_digest) {
      EXPECT_TRUE(absl::IsFailedPrecondition(response.status())) << response.status();
      return;
    }
    ASSERT_TRUE(response.ok()) << response.status() << " operation " << operation_;
    EXPECT_TRUE(response->decisions() == decisions) << "operation " << operation_;
    EXPECT_EQ(response->totals().ShortDebugString(), ToTotals(sums).ShortDebugString());
    EXPECT_EQ(response->newly_counted(), counted);
    ExpectMissing(*response, asked);
  }
}

void ModelTest::Release(ModelSequence& sequence) {
  if (OneIn(2)) Keep(sequence);
  const bool stored = sequence.is_there();
  int64_t released = 0;
  const absl::StatusCode code = UntilAnswered([&] {
    const auto answer = AnyReplica().Release({sequence.id});
    if (answer.ok()) released = *answer;
    return answer.status().code();
  });
  ASSERT_EQ(code, absl::StatusCode::kOk) << "operation " << operation_;
  if (where_ == Where::kMemory) EXPECT_EQ(released, stored) << "operation " << operation_;
  if (stored) return Forget(sequence, MissingReason::kReleased);
  sequence = NewSequence();
}

void ModelTest::AdvanceVersion() {
  const uint64_t next = version_ + 1;
  int64_t dropped = 0;
  const absl::StatusCode code = UntilAnswered([&] {
    const auto answer = AnyReplica().AdvanceVersion(next);
    if (answer.ok()) version_ = next, dropped = *answer;
    return answer.status().code();
  });
  ASSERT_EQ(code, absl::StatusCode::kOk) << "operation " << operation_;
  for (int server = 0; server < servers_; ++server) replicas_[server]->runs().TakeInShared();
  int64_t expected = 0;
  for (ModelSequence& sequence : sequences_) {
    if (!sequence.IsStale(version_)) continue;
    if (where_ == Where::kMemory) {
      if (sequence.kept_until.has_value()) continue;
      ++expected, ++stale_;
      Forget(sequence, MissingReason::kStale);
      continue;
    }
    if (OneIn(2)) Restart(OneIn(2));
    // Dropped, or as a whole too old to count.
    const Run::Found found = AnyReplica().Find(sequence.id);
    if (!std::holds_alternative<std::shared_ptr<Sequence>>(found)) {
      EXPECT_EQ(found, Run::Found(MissingReason::kStale)) << "operation " << operation_;
    }
    sequence = NewSequence();
  }
  if (where_ == Where::kMemory) EXPECT_EQ(dropped, expected) << "operation " << operation_;
}

// In memory only: deadlines pass, and what nobody has used for too long goes.
void ModelTest::PassTime() {
  replicas_[0]->clock().Advance(absl::Seconds(OneIn(20) ? 61 : random_.Uniform(0, 5)));
  replicas_[0]->registry().DropExpired();
  std::vector<ModelSequence*> due;
  for (ModelSequence& sequence : sequences_) {
    if (sequence.kept_until.has_value() && *sequence.kept_until <= Now()) due.push_back(&sequence);
  }
  std::ranges::sort(due, {}, [](const ModelSequence* sequence) { return *sequence->kept_until; });
  for (ModelSequence* sequence : due) {
    sequence->kept_until.reset();
    Use(*sequence);
  }
  for (ModelSequence& sequence : sequences_) {
    if (!sequence.is_there() || sequence.kept_until.has_value()) continue;
    const bool expired = Now() - sequence.used > kTimeToLive;
    expired_ += expired;
    if (sequence.IsStale(version_)) {
      Forget(sequence, MissingReason::kStale);
    } else if (expired) {
      Forget(sequence, MissingReason::kExpired);
    }
  }
}

// In memory only: what has left it was evicted, the least recently used first.
void ModelTest::Settle() {
  sis::Run& run = replicas_[0]->run();
  int64_t last_evicted = 0, first_left = uses_ + 1;
  uint64_t there = 0, kept = 0, positions = 0;
  for (ModelSequence& sequence : sequences_) {
    if (!sequence.is_there()) continue;
    if (run.BytesOf({sequence.id, 0}) == 0) {
      EXPECT_FALSE(sequence.kept_until.has_value()) << sequence.id;
      last_evicted = std::max(last_evicted, sequence.use);
      ++evicted_;
      Forget(sequence, MissingReason::kEvicted);
      continue;
    }
    ++there;
    kept += sequence.kept_until.has_value();
    positions += sequence.positions.size();
    if (!sequence.kept_until.has_value()) first_left = std::min(first_left, sequence.use);
  }
  EXPECT_LT(last_evicted, first_left) << "operation " << operation_;
  EXPECT_LE(run.budget().used(), Quota());
  const RunDescription described = run.Describe();
  EXPECT_EQ(std::tie(described.sequences, described.kept_sequences, described.positions),
            std::tie(there, kept, positions))
      << "operation " << operation_;
}

TEST_P(ModelTest, WhatWasAnsweredIsSo) {
  const bool memory = where_ == Where::kMemory;
  const int operations = (memory ? 16'000 : 2'500) / kShare;
  for (operation_ = 1; operation_ <= operations && !HasFailure(); ++operation_) {
    const auto any = [&]() -> ModelSequence& {
      return sequences_[random_.Uniform(0, kSequencesInPlay - 1)];
    };
    const uint32_t kept = std::ranges::count_if(
        sequences_, [](const ModelSequence& sequence) { return sequence.kept_until.has_value(); });
    const uint32_t kind = random_.Uniform(0, 999);
    if (kind < 580) {
      Change(any());
    } else if (kind < 700) {
      Read(any());
    } else if (kind < 800) {
      Evaluate(any(), any());
    } else if (kind < 820 && kept == 0) {
      Keep(any());
    } else if (kind < 940) {
      if (!memory) {
        AnyReplica().run().EvictOldest();
      } else if (OneIn(4)) {
        PassTime();
      } else if (OneIn(2)) {
        AdvanceVersion();
      }
    } else if (kind < 985) {
      Release(any());
    } else if (kind < 995) {
      AdvanceVersion();
    } else if (!memory || OneIn(20)) {
      Restart(OneIn(2));
    }
    if (memory) Settle();
  }
  EXPECT_GT(annotated_, operations / 400);
  if (memory) {
    EXPECT_GT(std::min({evicted_, expired_, stale_}), operations / 2000)
        << evicted_ << " " << expired_ << " " << stale_;
  } else {
    EXPECT_GT(failures_, operations / 50);
    Restart(false);
  }
  for (ModelSequence& sequence : sequences_) Read(sequence);
}

INSTANTIATE_TEST_SUITE_P(Settings, ModelTest,
                         ::testing::Values(Setting{"memory", Where::kMemory, 1, 3},
                                           Setting{"memory_fixed16", Where::kMemory, 2, 10,
                                                   v1::LOG_PROB_ENCODING_FIXED16},
                                           Setting{"memory_device", Where::kMemory, 3, 1,
                                                   v1::LOG_PROB_ENCODING_FIXED16, /*device=*/true},
                                           Setting{"rocksdb", Where::kRocksDb, 4},
                                           Setting{"rocksdb_fixed16", Where::kRocksDb, 5, 3,
                                                   v1::LOG_PROB_ENCODING_FIXED16},
                                           Setting{"redis", Where::kRedis, 6}),
                         [](const auto& setting) { return setting.param.name; });

}  // namespace
}  // namespace sis
