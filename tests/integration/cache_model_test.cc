// A million random operations on the cache, each answer compared with the model's.
#include "tests/integration/cache_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/digest.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/decide/simd_backend.h"
#include "kernels/numerics/sequence_key.h"
#include "server/fetch/fetch.h"
#include "server/messages/arrays.h"
#include "server/store/open_store.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/evaluate_at_once.h"
#include "tests/integration/record_pool.h"

namespace sis {
namespace {

constexpr uint32_t kSeed = 20261121;
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int kShare = 25;  // runs one operation in kShare
#else
constexpr int kShare = 1;
#endif
constexpr int kOperationsInMemory = 150'000;  // of one run
constexpr int kOperationsStored = 18'000;
constexpr std::array kTopKs = {1, 3, 10};
constexpr std::array kEncodings = {v1::LOG_PROB_ENCODING_FLOAT32, v1::LOG_PROB_ENCODING_FIXED16};
static_assert((kOperationsInMemory + kOperationsStored) * kTopKs.size() * kEncodings.size() >=
              1'000'000);

constexpr uint32_t kMaxPositions = 300;  // of one sequence
constexpr uint32_t kRows = 1024;
constexpr int kNamesInPlay = 48;
constexpr int kSequencesInBudget = 5;
constexpr uint64_t kMaxStaleness = 3;
constexpr double kTimeToLive = 60;

SequenceName NameOf(int number) {
  return {absl::StrCat("s", number / 2), static_cast<uint32_t>(number % 2)};
}

SequenceName NameOf(const v1::Slice& slice) {
  return {slice.sequence().id(), slice.sequence().attempt()};
}

template <typename Request>
std::set<SequenceName> NamesOf(const Request& request) {
  std::set<SequenceName> names;
  for (const v1::Slice& slice : request.slices()) names.insert(NameOf(slice));
  return names;
}

void SetSequence(const SequenceName& name, v1::SequenceRef& ref) {
  ref.set_id(name.id);
  ref.set_attempt(name.attempt);
}

// A server's cache from start to end.
struct Life {
  Life(const std::string& store_description, int64_t bytes, const ManualClock& clock,
       const v1::RunConfig& config)
      : store(*OpenStore(store_description)),
        registry(bytes, {}, [&clock] { return clock.Now(); }) {
    if (store != nullptr) stored.emplace(*store, registry, [&clock] { return clock.Now(); });
    runs.emplace(registry, stored.has_value() ? &*stored : nullptr);
    Create(config, 0);
  }

  void Create(const v1::RunConfig& config, uint64_t incarnation) {
    v1::CreateRunRequest request;
    request.set_run_id("run");
    request.set_incarnation(incarnation);
    *request.mutable_config() = config;
    RunRegistry::Created created_run = *runs->Create(request);
    run = created_run.run;
    created = created_run.created;
    ingest.emplace(*Ingest::Open(*runs, HeaderOf(*run)));
  }

  std::unique_ptr<Store> store;
  RunRegistry registry;
  std::optional<StoredCache> stored;
  std::optional<StoredRuns> runs;
  std::shared_ptr<Run> run;
  bool created;
  std::optional<Ingest> ingest;
};

// With rocksdb, or memory only; K; and how log-probs are kept.
using Parameters = std::tuple<bool, int, v1::LogProbEncoding>;

class CacheModelTest : public testing::TestWithParam<Parameters> {
 protected:
  CacheModelTest() {
    clock_.Advance(absl::Hours(24 * 36500));  // so that the store, by its own clock, keeps all
    Start();
  }
  ~CacheModelTest() override {
    life_.reset();
    std::filesystem::remove_all(directory_);
  }

  static v1::RunConfig Config() {
    const auto [durable, top_k, encoding] = GetParam();
    v1::RunConfig config = SmallConfig(top_k);
    config.set_log_prob_encoding(encoding);
    config.set_time_to_live_seconds(kTimeToLive);
    config.set_evict_unread(true);
    if (top_k != 1) config.set_max_staleness(kMaxStaleness);
    if (top_k == 3) config.set_byte_quota(BudgetBytes());
    return config;
  }
  // Returns the maximum bytes of a sequence. Its blocks end where the policy version changes.
  static int64_t MostBytes() {
    constexpr int64_t kVersions = 40;
    return Sequence::kBaseBytes + kVersions * CachedBlock::Charge(sizeof(BlockHeader)) +
           kMaxPositions * (8 + 8 * std::get<1>(GetParam()));
  }
  static int64_t BudgetBytes() { return kSequencesInBudget * MostBytes(); }

  void Start() {
    const std::string description = durable_ ? "rocksdb:" + directory_.string() : "memory";
    life_.emplace(description, cache_bytes_, clock_, config_);
    model_.SetTime(clock_.Now());
  }
  void Step();

  uint32_t Below(uint32_t end) {
    return std::uniform_int_distribution<uint32_t>(0, end - 1)(random_);
  }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  // Mostly of a sequence that has records.
  SequenceName AnyName();
  // Mostly with records.
  uint32_t AnyPosition(const SequenceName& name) {
    return std::min(Below(model_.Length(name) + 20), kMaxPositions - 1);
  }

  // Seldom above 0, else too little might be left to evict.
  double KeepSeconds() { return OneIn(4) && model_.kept() < 4 ? 1 + Below(100) : 0; }

  void Append();
  v1::AppendEntry BlockEntry(const SequenceName& name, absl::StatusCode& expected);
  v1::AppendEntry SealEntry(const SequenceName& name, absl::StatusCode& expected);
  v1::EvaluateRequest EvaluateRequest();
  void Evaluate();
  void Fetch(const v1::FetchTopKRequest& request);
  v1::FetchTopKRequest FetchRequest();
  void Release();
  void AdvanceVersion();
  void PassTime();
  void OpenIncarnation();
  void Restart();
  void CompareAll();
  // Waits until the thread that merges stored blocks holds nothing.
  void AwaitSealed();
  void Settle(const std::set<SequenceName>& used);

  // For messages: what is done, and to which sequence; none if to the run.
  void Note(std::string_view what, std::optional<SequenceName> name, uint32_t first = 0,
            uint64_t count = 0, uint64_t version = 0) {
    history_.push_back({number_, what, std::move(name), first, count, version});
    if (history_.size() > 50'000) history_.pop_front();
  }
  std::string History() const;
  template <typename A, typename B>
  void ExpectEqual(const A& is, const B& should_be, std::string_view what) {
    if (is != should_be) {
      ADD_FAILURE() << what << " is " << testing::PrintToString(is) << ", not "
                    << testing::PrintToString(should_be) << History();
    }
  }
  template <typename Message>
  void ExpectSame(const Message& is, const Message& should_be) {
    if (is.SerializeAsString() != should_be.SerializeAsString()) {
      ADD_FAILURE() << "the answer is\n"
                    << is.ShortDebugString() << "\nnot\n"
                    << should_be.ShortDebugString() << History();
    }
  }

  const bool durable_ = std::get<0>(GetParam());
  const v1::RunConfig config_ = Config();
  const int64_t cache_bytes_ = config_.byte_quota() > 0 ? 4 * BudgetBytes() : BudgetBytes();
  const std::filesystem::path directory_ = [] {
    std::string path = testing::TempDir() + "/cache-model-XXXXXX";
    return std::filesystem::path(mkdtemp(path.data()));
  }();
  // For one K of three, with a memory that keeps copies of a few blocks, as a device does.
  const std::unique_ptr<const Backend> backend_ =
      config_.top_k() == kTopKs[1]
          ? cuda::BackendOnHostStages(std::make_unique<SimdBackend>(), 3, size_t{4} << 10,
                                      cuda::When::kLate)
          : std::unique_ptr<const Backend>(std::make_unique<SimdBackend>());
  const RecordPool pool_{config_, kRows, kSeed};

  ManualClock clock_;
  CacheModel model_{pool_, config_, durable_};
  std::optional<Life> life_;

  std::mt19937 random_{kSeed};
  int64_t number_ = 0;
  int names_ = 1;                  // so many have been used, and one more may be asked for
  std::deque<v1::Slice> fetched_;  // with digests
  struct Operation {
    int64_t number;
    std::string_view what;
    std::optional<SequenceName> name;
    uint32_t first;
    uint64_t count;
    uint64_t version;
  };
  std::deque<Operation> history_;

  // Counts of acks by code, and of missing positions by reason.
  std::map<int, int64_t> acks_;
  std::map<int, int64_t> missing_;
};

std::string CacheModelTest::History() const {
  std::set<SequenceName> named;
  for (const Operation& operation : history_) {
    if (operation.number == number_ && operation.name.has_value()) named.insert(*operation.name);
  }
  std::deque<std::string> lines;
  for (const Operation& operation : history_) {
    if (operation.name.has_value() && !named.contains(*operation.name)) continue;
    lines.push_back(absl::StrCat("\n  ", operation.number, ": ", std::string(operation.what), " ",
                                 operation.name.has_value() ? ToString(*operation.name) : "", " [",
                                 operation.first, ", ", operation.first + operation.count,
                                 ") version ", operation.version));
    if (lines.size() > 30) lines.pop_front();
  }
  std::string text = absl::StrCat("\nseed ", kSeed, ", operation ", number_, ", after");
  for (const std::string& line : lines) text += line;
  return text;
}

SequenceName CacheModelTest::AnyName() {
  SequenceName name;
  for (int tries = 0; tries < 4; ++tries) {
    name = NameOf(std::max(0, names_ - static_cast<int>(Below(kNamesInPlay))));
    if (model_.Length(name) > 0) break;
  }
  return name;
}

void CacheModelTest::Settle(const std::set<SequenceName>& used) {
  if (const std::optional<std::string> wrong = model_.Settle(*life_->run, used)) {
    ADD_FAILURE() << *wrong << History();
  }
  if (model_.evicted() > 0) {
    // New records refill the freed bytes, except those left of the last evicted sequence.
    const int64_t free = BudgetBytes() - life_->run->budget().used();
    if (free > 2 * MostBytes())
      ADD_FAILURE() << "evicted, with " << free << " bytes free" << History();
  }
  // Loading from the store in the middle of a call would drop what is overdue, so nothing overdue
  // may be left.
  if (durable_ && model_.Overdue()) {
    Note("drop expired", std::nullopt);
    life_->registry.DropExpired();
    model_.DropExpired();
  }
}

void CacheModelTest::AwaitSealed() {
  sis::Run& run = *life_->run;
  const int64_t not_kept = model_.BytesNotKept(run);
  while (run.EvictableBytes(std::numeric_limits<int64_t>::max()) < not_kept) {
    std::this_thread::yield();
  }
}

// Mostly at the end, as engines do; also again, with gaps, and in conflict with what is there.
v1::AppendEntry CacheModelTest::BlockEntry(const SequenceName& name, absl::StatusCode& expected) {
  const uint32_t offset =
      static_cast<uint32_t>(SequenceKey(0, name.attempt, name.id) % (kRows - kMaxPositions));
  const uint32_t length = model_.Length(name);
  const uint32_t place = Below(20);
  uint32_t first = length;
  if (place == 0) {
    first = length + Below(80);
  } else if (place < 6) {
    first = Below(length + 1);
  }
  first = std::min(first, kMaxPositions - 1);
  const uint32_t kind = Below(20);
  const uint32_t most = kind == 0 ? 80 : kind < 6 ? 20 : 4;
  const uint32_t count = std::min(1 + Below(most), kMaxPositions - first);

  uint64_t version = model_.policy_version();
  if (OneIn(20)) version += 1;
  if (OneIn(20) && version > 0) version -= 1;
  if (const auto there = model_.At(name, first); there.has_value() && !OneIn(10)) {
    version = there->version;
  }
  std::vector<uint32_t> rows(count);
  const bool twins = OneIn(20);
  for (uint32_t i = 0; i < count; ++i) {
    const auto there = model_.At(name, first + i);
    rows[i] = offset + first + i;
    if (twins) rows[i] = pool_.Twin(rows[i]);
    if (there.has_value()) rows[i] = there->row;
  }
  if (OneIn(6)) {
    uint32_t& row = rows[Below(count)];
    row = row < kRows ? pool_.Twin(row) : row - kRows;
  }

  v1::AppendEntry entry = pool_.Block(name, first, version, rows);
  if (OneIn(80)) {
    entry.mutable_block()->back() ^= 1;
    Note("append with a wrong checksum", name, first, count, version);
    expected = model_.AppendInvalid(name);
    return entry;
  }
  Note("append", name, first, count, version);
  expected = model_.Append(name, first, version, rows);
  return entry;
}

// Mostly with some positions yet to come.
v1::AppendEntry CacheModelTest::SealEntry(const SequenceName& name, absl::StatusCode& expected) {
  const uint32_t committed = model_.Length(name);
  const uint32_t length =
      OneIn(10) ? Below(committed + 1) : std::min(committed + Below(12), kMaxPositions);
  v1::AppendEntry entry;
  SetSequence(name, *entry.mutable_sequence());
  entry.mutable_seal()->set_length(length);
  Note("seal", name, length);
  expected = model_.Seal(name, length);
  return entry;
}

// One to three blocks of one sequence, and perhaps its seal.
void CacheModelTest::Append() {
  if (OneIn(20)) ++names_;
  const SequenceName name = OneIn(8) ? NameOf(names_) : AnyName();
  model_.BringIn(name);
  v1::AppendBatch batch;
  std::vector<absl::StatusCode> codes;
  std::vector<uint32_t> lengths;
  const auto add = [&](auto next_entry) {
    absl::StatusCode code;
    *batch.add_entries() = (this->*next_entry)(name, code);
    codes.push_back(code);
    lengths.push_back(model_.CommittedLength(name));
  };
  bool sealed = false;
  const uint32_t blocks = OneIn(60) ? 0 : OneIn(8) ? 3 : 1;
  for (uint32_t i = 0; i < blocks; ++i) add(&CacheModelTest::BlockEntry);
  if (blocks == 0 || OneIn(100)) {
    add(&CacheModelTest::SealEntry);
    sealed = codes.back() == absl::StatusCode::kOk;
  }

  Ingest& ingest = *life_->ingest;
  const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(ingest, batch);
  ASSERT_TRUE(response.ok()) << response.status() << History();
  if (sealed && ingest.has_store()) AwaitSealed();
  for (int i = 0; i < batch.entries_size(); ++i) {
    ExpectEqual(response->acks(i).code(), static_cast<int>(codes[i]),
                absl::StrCat("the code of entry ", i, " (", response->acks(i).message(), ")"));
    ++acks_[response->acks(i).code()];
    ExpectEqual(response->acks(i).committed_length(), lengths[i],
                absl::StrCat("the committed length of entry ", i));
  }
  Settle({name});
}

// Returns the digest of the positions from `first` on, to which clients trim blocks.
uint64_t DigestOfBlocks(uint32_t first, const v1::FetchedSlice& slice) {
  uint64_t digest = 0;
  for (const std::string& bytes : slice.blocks()) {
    const auto block = OpenBlock(std::as_bytes(std::span(bytes)), /*checksums=*/true);
    if (!block.ok()) return 0;
    const uint32_t from = std::max(first, block->header.first_position);
    const auto to =
        static_cast<uint32_t>(std::min<uint64_t>(uint64_t{first} + slice.length(), block->end()));
    digest += DigestOf(*block, from - block->header.first_position, to - from);
  }
  return digest;
}

v1::FetchTopKRequest CacheModelTest::FetchRequest() {
  v1::FetchTopKRequest request;
  request.set_whole_blocks(true);
  for (uint32_t i = 1 + Below(2); i > 0; --i) {
    v1::Slice& slice = *request.add_slices();
    const SequenceName name = AnyName();
    SetSequence(name, *slice.mutable_sequence());
    if (OneIn(3)) continue;  // the whole sequence
    slice.set_first_position(AnyPosition(name));
    slice.set_length(Below(40));
  }
  request.set_keep_seconds(KeepSeconds());
  return request;
}

void CacheModelTest::Fetch(const v1::FetchTopKRequest& request) {
  for (const v1::Slice& slice : request.slices()) {
    Note(request.keep_seconds() > 0 ? "fetch and keep" : "fetch", NameOf(slice),
         slice.first_position(), slice.length());
  }
  const std::vector<v1::FetchedSlice> expected = model_.Fetch(request);
  std::vector<v1::FetchedSlice> fetched;
  {
    absl::StatusOr<sis::Fetch> fetch = sis::Fetch::Open(life_->run, request);
    ExpectEqual(fetch.status().code(), absl::StatusCode::kOk, "the code");
    for (v1::FetchTopKResponse message; fetch.ok() && fetch->Next(message);) {
      for (const v1::FetchedSlice& entry : message.slices()) {
        if (entry.slice() == fetched.size()) fetched.emplace_back();
        fetched.back().MergeFrom(entry);
      }
    }
  }
  ExpectEqual(fetched.size(), expected.size(), "slices");
  for (size_t i = 0; i < std::min(fetched.size(), expected.size()); ++i) {
    v1::Slice slice = request.slices(static_cast<int>(i));
    ExpectEqual(DigestOfBlocks(slice.first_position(), fetched[i]), fetched[i].record_digest(),
                "the digest");
    fetched[i].clear_blocks();
    ExpectSame(fetched[i], expected[i]);
    if (fetched[i].length() == 0) continue;
    slice.set_length(fetched[i].length());
    slice.set_record_digest(fetched[i].record_digest());
    fetched_.push_back(slice);
    if (fetched_.size() > 20) fetched_.pop_front();
  }
  Settle(NamesOf(request));
}

v1::EvaluateRequest CacheModelTest::EvaluateRequest() {
  v1::EvaluateRequest request;
  for (uint32_t i = 1 + Below(3); i > 0; --i) {
    v1::Slice slice;
    if (!fetched_.empty() && OneIn(3)) {
      slice = fetched_[Below(fetched_.size())];
    } else {
      const SequenceName name = AnyName();
      SetSequence(name, *slice.mutable_sequence());
      slice.set_first_position(AnyPosition(name));
      slice.set_length(1 + Below(40));
    }
    const SequenceName name = NameOf(slice);
    if (NamesOf(request).contains(name)) continue;
    if (OneIn(4)) {
      slice.set_record_digest(model_.Digest(name, slice.first_position(), slice.length()));
    }
    if (slice.has_record_digest() && OneIn(30)) slice.set_record_digest(OneIn(2) ? 0 : 12345);
    *request.add_slices() = std::move(slice);
  }

  v1::Gathered gathered;
  for (const v1::Slice& slice : request.slices()) {
    for (uint32_t i = 0; i < slice.length(); ++i) {
      const auto there = model_.At(NameOf(slice), slice.first_position() + i);
      const v1::Gathered row = pool_.current().Gathered(there.has_value() ? there->row : 0, 1);
      *gathered.mutable_counts() += row.counts();
      *gathered.mutable_log_probs() += row.log_probs();
      *gathered.mutable_sampled_log_probs() += row.sampled_log_probs();
    }
  }
  if (OneIn(3)) {
    const size_t count = gathered.counts().size();
    v1::Reduced& reduced = *request.mutable_reduced();
    const auto envelopes = ResizeArray<float>(*reduced.mutable_log_envelopes(), count);
    const auto masses = ResizeArray<float>(*reduced.mutable_covered_masses(), count);
    for (size_t i = 0; i < count; ++i) {
      envelopes[i] = static_cast<float>(Below(1000)) / 500;
      masses[i] = static_cast<float>(Below(1000)) / 1000;
    }
    *reduced.mutable_sampled_log_probs() = std::move(*gathered.mutable_sampled_log_probs());
  } else {
    *request.mutable_gathered() = std::move(gathered);
  }
  request.set_draw(number_);
  request.set_top_k(Below(config_.top_k() + 1));
  request.set_keep_seconds(KeepSeconds());
  request.add_outputs(v1::OUTPUT_DECISIONS);
  request.add_outputs(v1::OUTPUT_ACCEPTANCE_PROBABILITIES);
  if (OneIn(6)) request.add_outputs(v1::OUTPUT_RATIOS);
  return request;
}

void CacheModelTest::Evaluate() {
  const v1::EvaluateRequest request = EvaluateRequest();
  for (const v1::Slice& slice : request.slices()) {
    Note("evaluate", NameOf(slice), slice.first_position(), slice.length());
  }
  absl::StatusOr<v1::EvaluateResponse> expected = model_.Evaluate(request);
  const auto response = EvaluateAtOnce(*life_->run, *backend_, request);
  ExpectEqual(response.status().code(), expected.status().code(),
              absl::StrCat("the code (", response.status().message(), ")"));
  if (response.ok() && expected.ok()) {
    ExpectSame(*response, *expected);
    for (const v1::MissingRange& range : response->missing()) ++missing_[range.reason()];
    if (OneIn(20)) {  // again: the same bytes, and nothing is counted
      expected->set_newly_counted(0);
      ExpectSame(*EvaluateAtOnce(*life_->run, *backend_, request), *expected);
    }
    ExpectSame(ToTotals(life_->run->steps().Find(request.draw())->evaluated.sums),
               expected->totals());
  }
  Settle(NamesOf(request));
}

void CacheModelTest::Release() {
  const SequenceName name = AnyName();
  Note("release", name);
  const auto released = life_->runs->Release(*life_->run, {&name, 1});
  ASSERT_TRUE(released.ok()) << released.status();
  ExpectEqual(*released, int64_t{model_.Release(name)}, "released");
  Settle({name});
}

void CacheModelTest::AdvanceVersion() {
  uint64_t version = model_.policy_version() + 1;
  if (OneIn(10)) version = Below(version);
  Note("advance", std::nullopt, 0, 0, version);
  const absl::StatusOr<int64_t> dropped = life_->runs->AdvanceVersion(*life_->run, version);
  const std::optional<int64_t> expected = model_.AdvanceVersion(version);
  ExpectEqual(dropped.ok(), expected.has_value(), "the version is taken");
  if (dropped.ok() && expected.has_value()) ExpectEqual(*dropped, *expected, "dropped");
  Settle({});
}

void CacheModelTest::PassTime() {
  const uint32_t seconds = OneIn(100) ? 61 : Below(5);
  Note("seconds pass", std::nullopt, 0, seconds);
  clock_.Advance(absl::Seconds(seconds));
  model_.SetTime(clock_.Now());
  if (OneIn(4)) {
    Note("drop expired", std::nullopt);
    life_->registry.DropExpired();
    model_.DropExpired();
  }
  Settle({});
}

void CacheModelTest::OpenIncarnation() {
  Note("open another incarnation", std::nullopt);
  clock_.Advance(absl::Seconds(1));
  model_.SetTime(clock_.Now());
  life_->Create(config_, life_->run->incarnation() + 1);
  ExpectEqual(life_->created, true, "the incarnation is new");
  model_.OpenIncarnation();
  Settle({});
}

void CacheModelTest::Restart() {
  Note("restart", std::nullopt);
  life_.reset();
  clock_.Advance(absl::Seconds(1));
  Start();
  ExpectEqual(life_->created, !durable_, "the run is new");
  model_.Restart();
  CompareAll();
}

void CacheModelTest::CompareAll() {
  for (int number = std::max(0, names_ - 2 * kNamesInPlay); number <= names_; ++number) {
    v1::FetchTopKRequest request;
    request.set_whole_blocks(true);
    SetSequence(NameOf(number), *request.add_slices()->mutable_sequence());
    Fetch(request);
  }
  const v1::Run described = ToMessage(life_->run->Describe());
  ExpectEqual(model_.Compare(described), "", "the run");
  ExpectEqual(life_->registry.budget().used(), static_cast<int64_t>(described.bytes()), "used");
  EXPECT_LE(life_->run->budget().used(), BudgetBytes());
}

void CacheModelTest::Step() {
  ++number_;
  const uint32_t kind = Below(1000);
  if (kind < 180) {
    Evaluate();
  } else if (kind < 280) {
    Fetch(FetchRequest());
  } else if (kind < 292) {
    Release();
  } else if (kind < 314) {
    AdvanceVersion();
  } else if (kind < 330) {
    PassTime();
  } else if (kind == 330 && OneIn(3)) {
    OpenIncarnation();
  } else {
    Append();
  }
}

TEST_P(CacheModelTest, AnswersAsTheModel) {
  const int operations = (durable_ ? kOperationsStored : kOperationsInMemory) / kShare;
  for (int i = 1; i <= operations && !HasFailure(); ++i) {
    Step();
    if (i % (operations / 20) == 0) CompareAll();
    if (i % (operations / 10) == operations / 20) Restart();
  }

  if (kShare > 1 || HasFailure()) return;
  for (const absl::StatusCode code :
       {absl::StatusCode::kOk, absl::StatusCode::kInvalidArgument, absl::StatusCode::kAlreadyExists,
        absl::StatusCode::kFailedPrecondition}) {
    EXPECT_GT(acks_[static_cast<int>(code)], 0) << code;
  }
  for (const auto& [reason, possible] :
       {std::pair(v1::MISSING_REASON_NEVER_ARRIVED, true),
        std::pair(v1::MISSING_REASON_EVICTED, !durable_),
        std::pair(v1::MISSING_REASON_EXPIRED, true),
        std::pair(v1::MISSING_REASON_STALE, config_.has_max_staleness()),
        std::pair(v1::MISSING_REASON_RELEASED, true),
        std::pair(v1::MISSING_REASON_STORE_DOWN, durable_)}) {
    EXPECT_EQ(missing_[reason] > 0, possible) << v1::MissingReason_Name(reason);
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, CacheModelTest,
                         testing::Combine(testing::Bool(), testing::ValuesIn(kTopKs),
                                          testing::ValuesIn(kEncodings)),
                         [](const testing::TestParamInfo<Parameters>& parameters) {
                           return absl::StrCat(
                               std::get<0>(parameters.param) ? "rocksdb_" : "memory_",
                               std::get<1>(parameters.param), "_",
                               v1::LogProbEncoding_Name(std::get<2>(parameters.param)));
                         });

}  // namespace
}  // namespace sis
