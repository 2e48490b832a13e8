#include "server/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "kernels/cpu_backend.h"
#include "kernels/philox.h"
#include "kernels/scalar_backend.h"
#include "kernels/sequence_key.h"
#include "server/cache_fixture.h"
#include "server/fetch.h"
#include "server/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr int kSlots = 5;
constexpr uint32_t kLength = 200;
const std::vector<std::string> kIds = {"a", "b", "c"};

struct NamedRange {
  int sequence;  // index into kIds
  uint32_t first;
  uint32_t count;
};

std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

void ExpectEqualTotals(const v1::Totals& a, const v1::Totals& b) {
  EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString()) << a.ShortDebugString() << "\n"
                                                          << b.ShortDebugString();
}

// Three sequences of 200 positions, and the current policy's values there.
class EvaluateTest : public testing::Test {
 protected:
  EvaluateTest() {
    for (const std::string& id : kIds) {
      records_.push_back(generator_.NextRecords(kLength));
      current_.push_back(generator_.NextCurrent(records_.back()));
      EXPECT_EQ(AppendBlock(cache_, *run_, records_.back().Block(id)).code(), 0);
    }
  }

  // GATHERED, of all outputs but RATIOS and LOG_RATIOS.
  v1::EvaluateRequest Request(const std::vector<NamedRange>& ranges, uint64_t draw = 1) const {
    v1::EvaluateRequest request;
    request.set_draw(draw);
    for (const NamedRange& range : ranges) {
      v1::Slice& slice = *request.add_slices();
      slice.mutable_sequence()->set_id(kIds[range.sequence]);
      slice.set_first_position(range.first);
      slice.set_length(range.count);
      const v1::Gathered part = current_[range.sequence].Gathered(range.first, range.count);
      *request.mutable_gathered()->mutable_log_probs() += part.log_probs();
      *request.mutable_gathered()->mutable_sampled_log_probs() += part.sampled_log_probs();
    }
    request.add_outputs(v1::DECISIONS);
    request.add_outputs(v1::ACCEPT_BITS);
    request.add_outputs(v1::ACCEPTANCE_PROBABILITIES);
    return request;
  }
  v1::EvaluateRequest ReducedRequest(const std::vector<NamedRange>& ranges, int top_k) const {
    v1::EvaluateRequest request = Request(ranges);
    v1::Reduced reduced;
    for (const NamedRange& range : ranges) {
      const v1::Reduced part = current_[range.sequence].Reduced(records_[range.sequence], top_k,
                                                                range.first, range.count);
      *reduced.mutable_sampled_log_probs() += part.sampled_log_probs();
      *reduced.mutable_log_envelopes() += part.log_envelopes();
      *reduced.mutable_covered_masses() += part.covered_masses();
    }
    *request.mutable_reduced() = reduced;
    request.set_top_k(top_k);
    return request;
  }

  absl::StatusOr<v1::EvaluateResponse> Try(const v1::EvaluateRequest& request) {
    return Evaluate(*run_, backend_, request);
  }
  v1::EvaluateResponse Do(const v1::EvaluateRequest& request) {
    absl::StatusOr<v1::EvaluateResponse> response = Try(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::EvaluateResponse();
  }
  v1::Totals Step(uint64_t draw) const {
    const auto step = run_->steps().Find(draw);
    return step.has_value() ? ToTotals(step->sums) : v1::Totals();
  }

  const std::vector<NamedRange> all_ = {{0, 0, kLength}, {1, 0, kLength}, {2, 0, kLength}};
  Cache cache_;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", LosslessConfig(kSlots));
  ScalarBackend backend_;
  RecordGenerator generator_{kSlots, 1000, 21};
  std::vector<Records> records_;
  std::vector<CurrentValues> current_;
};

TEST_F(EvaluateTest, DecidesAsTheKernelDoes) {
  for (int top_k = 1; top_k <= kSlots; ++top_k) {
    v1::EvaluateRequest request = Request(all_, 77);
    request.set_top_k(top_k);
    request.add_outputs(v1::RATIOS);
    request.add_outputs(v1::LOG_RATIOS);
    const v1::EvaluateResponse response = Do(request);
    ASSERT_EQ(response.decisions().size(), 3 * kLength);
    const std::vector<float> a = Floats(response.acceptance_probabilities());
    const std::vector<float> ratios = Floats(response.ratios());
    const std::vector<float> log_ratios = Floats(response.log_ratios());
    Sums sums;
    for (size_t i = 0; i < 3 * kLength; ++i) {
      const Records& records = records_[i / kLength];
      const CurrentValues& current = current_[i / kLength];
      const uint32_t position = i % kLength;
      EnvelopeAccumulator accumulator;
      for (int slot = 0; slot < top_k; ++slot) {
        accumulator.Add(records.log_probs[position * kSlots + slot],
                        current.log_probs[position * kSlots + slot]);
      }
      const uint64_t key = SequenceKey(7, 0, kIds[i / kLength]);
      const PositionResult expected =
          Decide(records.sampled_log_probs[position], current.sampled_log_probs[position],
                 accumulator.Finish(), records.ranks[position] < top_k,
                 AcceptanceUniforms(key, position / 4, 77).word[position % 4]);
      AddPosition(expected, accumulator.Finish(), sums);
      ASSERT_EQ(static_cast<Decision>(response.decisions()[i]), expected.decision) << i;
      ASSERT_EQ(response.accept_bits()[i / 8] >> (i % 8) & 1,
                expected.decision == Decision::kAccepted)
          << i;
      ASSERT_EQ(a[i], expected.acceptance_probability) << i;
      ASSERT_EQ(ratios[i], expected.modified_ratio()) << i;
      ASSERT_EQ(log_ratios[i], expected.log_modified_ratio()) << i;
    }
    ExpectEqualTotals(response.totals(), ToTotals(sums));
    EXPECT_GT(sums.accepted, 0);
    EXPECT_EQ(sums.rejected > 0, top_k > 1) << "of one slot, y is the envelope";
    EXPECT_GT(sums.outside_top_k, 0);
    EXPECT_LE(response.totals().d_sis(), response.totals().d());
  }
}

TEST_F(EvaluateTest, GatheredAndReducedAreTheSame) {
  for (int top_k = 1; top_k <= kSlots; ++top_k) {
    v1::EvaluateRequest gathered = Request(all_);
    gathered.set_top_k(top_k);
    v1::EvaluateResponse a = Do(gathered);
    v1::EvaluateResponse b = Do(ReducedRequest(all_, top_k));
    a.clear_newly_counted();
    b.clear_newly_counted();
    EXPECT_EQ(a.SerializeAsString(), b.SerializeAsString()) << top_k;
  }
  v1::EvaluateRequest zero = Request(all_);
  EXPECT_EQ(Do(zero).decisions(), [&] {
    zero.set_top_k(kSlots);
    return Do(zero).decisions();
  }()) << "0 means K";
}

TEST_F(EvaluateTest, ThePrefixCurveIsTheTotalsOfSmallerK) {
  v1::EvaluateRequest request = Request(all_);
  for (const uint32_t k : {1, 3, 5}) request.add_prefix_curve(k);
  const v1::EvaluateResponse response = Do(request);
  ASSERT_EQ(response.prefix_curve_size(), 3);
  request.clear_prefix_curve();
  for (const v1::PrefixPoint& point : response.prefix_curve()) {
    request.set_top_k(point.top_k());
    const v1::Totals totals = Do(request).totals();
    EXPECT_EQ(point.residual_mass(), totals.residual_mass()) << point.top_k();
    EXPECT_EQ(point.expected_acceptance(), totals.expected_acceptance()) << point.top_k();
  }
  EXPECT_EQ(response.prefix_curve(1).top_k(), 3);
}

// By the positions counted for the first time as well, so that no rank's share is lost.
TEST_F(EvaluateTest, TotalVariationComesIfAskedFor) {
  v1::EvaluateRequest request = Request(all_);
  EXPECT_EQ(Do(request).totals().total_variation(), 0);
  request.set_draw(2);
  request.set_total_variation(true);
  const v1::Totals totals = Do(request).totals();
  EXPECT_GT(totals.total_variation(), 0);
  EXPECT_EQ(Step(2).total_variation(), totals.total_variation());
}

TEST_F(EvaluateTest, AnySplitGivesTheSame) {
  v1::EvaluateRequest request = Request(all_, 100);
  request.add_outputs(v1::LOG_RATIOS);
  const v1::EvaluateResponse whole = Do(request);
  EXPECT_EQ(whole.newly_counted(), 3 * kLength);
  ExpectEqualTotals(whole.totals(), Step(100));
  for (uint64_t draw : {100, 101, 102, 103}) {
    // The same uniforms need the same draw: the ledger of a fresh run counts each again.
    std::shared_ptr<sis::Run> fresh =
        cache_.CreateRun("split" + std::to_string(draw), LosslessConfig(kSlots));
    for (size_t s = 0; s < kIds.size(); ++s)
      AppendBlock(cache_, *fresh, records_[s].Block(kIds[s]));
    std::vector<NamedRange> pieces;
    for (int s = 0; s < 3; ++s) {
      for (uint32_t first = 0; first < kLength;) {
        const uint32_t count = std::min(kLength - first, generator_.Uniform(1, 90));
        pieces.push_back({s, first, count});
        first += count;
      }
    }
    // Calls of up to three pieces, in any order.
    std::mt19937 random(static_cast<uint32_t>(draw));
    std::ranges::shuffle(pieces, random);
    std::string decisions(3 * kLength, '\0');
    std::vector<float> log_ratios(3 * kLength);
    uint64_t counted = 0;
    for (size_t next = 0; next < pieces.size();) {
      const size_t size = std::min<size_t>(pieces.size() - next, generator_.Uniform(1, 3));
      const std::vector<NamedRange> call(pieces.begin() + next, pieces.begin() + next + size);
      v1::EvaluateRequest part = Request(call, 100);
      part.add_outputs(v1::LOG_RATIOS);
      const absl::StatusOr<v1::EvaluateResponse> response = Evaluate(*fresh, backend_, part);
      ASSERT_TRUE(response.ok()) << response.status();
      counted += response->newly_counted();
      size_t offset = 0;
      const std::vector<float> part_log_ratios = Floats(response->log_ratios());
      for (const NamedRange& piece : call) {
        const size_t to = piece.sequence * kLength + piece.first;
        decisions.replace(to, piece.count, response->decisions().substr(offset, piece.count));
        std::copy_n(part_log_ratios.begin() + offset, piece.count, log_ratios.begin() + to);
        offset += piece.count;
      }
      next += size;
    }
    EXPECT_EQ(decisions, whole.decisions());
    EXPECT_EQ(log_ratios, Floats(whole.log_ratios()));
    EXPECT_EQ(counted, 3 * kLength);
    ExpectEqualTotals(ToTotals(fresh->steps().Find(100)->sums), whole.totals());
    EXPECT_EQ(fresh->steps().Find(100)->sequences, 3);
  }
}

TEST_F(EvaluateTest, DrawsAreIndependent) {
  EXPECT_NE(Do(Request(all_, 1)).decisions(), Do(Request(all_, 2)).decisions());
  EXPECT_EQ(Do(Request(all_, 1)).decisions(), Do(Request(all_, 1)).decisions());
  ExpectEqualTotals(Step(1), Do(Request(all_, 1)).totals());
}

TEST_F(EvaluateTest, OverlappingRetriesFromManyThreadsCountEachPositionOnce) {
  constexpr uint32_t kBeyond = kLength + 40;  // of which 40 are missing
  for (CurrentValues& current : current_) {
    current.log_probs.resize(kBeyond * kSlots, -1.0f);
    current.sampled_log_probs.resize(kBeyond, -1.0f);
  }
  const v1::EvaluateResponse whole = Do(Request({{0, 0, kBeyond}, {1, 0, kBeyond}}, 8));
  std::atomic<uint64_t> counted = 0;
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 150; ++i) {
      std::vector<NamedRange> ranges;
      for (int s = 0; s < 2; ++s) {
        const auto first = static_cast<uint32_t>(random() % kBeyond);
        const auto count = static_cast<uint32_t>(1 + random() % std::min(60u, kBeyond - first));
        ranges.push_back({s, first, count});
      }
      counted += Do(Request(ranges, 9)).newly_counted();
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  counted += Do(Request({{0, 0, kBeyond}, {1, 0, kBeyond}}, 9)).newly_counted();
  EXPECT_EQ(counted, 2 * kBeyond);
  const v1::Totals step = Step(9);
  EXPECT_EQ(step.missing(), 80);
  EXPECT_EQ(step.d(), whole.totals().d());
  EXPECT_EQ(step.acceptance_probability(), whole.totals().acceptance_probability());
  EXPECT_EQ(step.accepted() + step.rejected() + step.outside_top_k(), 2 * kLength);
}

TEST_F(EvaluateTest, MissingPositionsSayWhy) {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(1);
  run_ = cache_.CreateRun("m", config);
  // a: [0, 64) of version 5, [64, 90) of version 2, a gap, [150, 160) of version 5. b was released;
  // c never came.
  AppendBlock(cache_, *run_, records_[0].Block("a", 0, 5, 0, 64));
  AppendBlock(cache_, *run_, records_[0].Block("a", 64, 2, 64, 26));
  AppendBlock(cache_, *run_, records_[0].Block("a", 150, 5, 150, 10));
  AppendBlock(cache_, *run_, records_[1].Block("b"));
  run_->Release({"b", 0});
  ASSERT_TRUE(run_->AdvanceVersion(5).ok());
  const v1::EvaluateResponse response = Do(Request(all_));
  const std::tuple<uint32_t, uint32_t, uint32_t, v1::MissingReason> expected[] = {
      {0, 64, 26, v1::STALE},
      {0, 90, 60, v1::NEVER_ARRIVED},
      {0, 160, 40, v1::NEVER_ARRIVED},
      {1, 0, kLength, v1::RELEASED},
      {2, 0, kLength, v1::NEVER_ARRIVED},
  };
  ASSERT_EQ(response.missing_size(), 5) << response.ShortDebugString();
  for (int i = 0; i < 5; ++i) {
    const v1::MissingRange& range = response.missing(i);
    EXPECT_EQ(std::tuple(range.slice(), range.first_position(), range.length(), range.reason()),
              expected[i])
        << i;
  }
  const std::vector<float> a = Floats(response.acceptance_probabilities());
  for (uint32_t i = 0; i < 3 * kLength; ++i) {
    const bool present = i < 64 || (i >= 150 && i < 160);
    EXPECT_EQ(static_cast<Decision>(response.decisions()[i]) == Decision::kMissing, !present) << i;
    if (present) continue;
    EXPECT_EQ(a[i], 0) << i;
    EXPECT_EQ(response.accept_bits()[i / 8] >> (i % 8) & 1, 0) << i;
  }
  EXPECT_EQ(response.totals().missing(), 3 * kLength - 74);
  EXPECT_EQ(response.slice_totals(0).missing(), kLength - 74);
  EXPECT_EQ(response.slice_totals(1).missing(), kLength);
  EXPECT_EQ(response.newly_counted(), 3 * kLength);
  ExpectEqualTotals(Step(1), response.totals());

  for (const v1::Output output : {v1::RATIOS, v1::LOG_RATIOS}) {
    v1::EvaluateRequest request = Request({{0, 0, 100}}, 5);
    request.add_outputs(output);
    const absl::Status status = Try(request).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("sequence 'a' attempt 0 position 64 is missing (stale)"));
    EXPECT_FALSE(run_->steps().Find(5).has_value()) << "an error counts nothing";
  }
}

TEST_F(EvaluateTest, OutputsAreThoseWanted) {
  v1::EvaluateRequest request = Request({{0, 0, 9}});
  request.clear_outputs();
  v1::EvaluateResponse response = Do(request);
  EXPECT_EQ(response.accept_bits().size(), 2);
  EXPECT_EQ(response.decisions() + response.ratios() + response.log_ratios() +
                response.acceptance_probabilities(),
            "");
  const auto sizes = [&](v1::Output output) {
    request.clear_outputs();
    request.add_outputs(output);
    const v1::EvaluateResponse r = Do(request);
    return std::vector<size_t>{r.accept_bits().size(), r.decisions().size(), r.ratios().size(),
                               r.log_ratios().size(), r.acceptance_probabilities().size()};
  };
  EXPECT_THAT(sizes(v1::ACCEPT_BITS), testing::ElementsAre(2, 0, 0, 0, 0));
  EXPECT_THAT(sizes(v1::DECISIONS), testing::ElementsAre(0, 9, 0, 0, 0));
  EXPECT_THAT(sizes(v1::RATIOS), testing::ElementsAre(0, 0, 36, 0, 0));
  EXPECT_THAT(sizes(v1::LOG_RATIOS), testing::ElementsAre(0, 0, 0, 36, 0));
  EXPECT_THAT(sizes(v1::ACCEPTANCE_PROBABILITIES), testing::ElementsAre(0, 0, 0, 0, 36));
}

TEST_F(EvaluateTest, TheLastByteOfAcceptBitsIsFilledWithZeros) {
  // Equal policies accept every token of V_K.
  for (uint32_t count = 1; count < 20; ++count) {
    v1::EvaluateRequest request = Request({{0, 0, count}});
    std::string bits((count + 7) / 8, '\0');
    for (uint32_t i = 0; i < count; ++i) {
      if (records_[0].ranks[i] < kSlots) bits[i / 8] |= static_cast<char>(1 << (i % 8));
    }
    const v1::Block block = records_[0].Block("a", 0, 0, 0, count);
    request.mutable_gathered()->set_log_probs(block.top_k_log_probs());
    request.mutable_gathered()->set_sampled_log_probs(block.sampled_log_probs());
    EXPECT_EQ(Do(request).accept_bits(), bits) << count;
  }
}

TEST_F(EvaluateTest, DigestsHoldTheRecordsStill) {
  v1::FetchTopKRequest fetch_request;
  fetch_request.add_slices()->mutable_sequence()->set_id("a");
  v1::Slice& part = *fetch_request.add_slices();
  part.mutable_sequence()->set_id("a");
  part.set_first_position(60);
  part.set_length(300);
  v1::FetchTopKResponse header;
  ASSERT_TRUE(Fetch::Open(run_, fetch_request)->Next(header));
  const uint64_t digest = header.header().slices(0).record_digest();

  v1::EvaluateRequest request = Request({{0, 0, kLength}});
  request.mutable_slices(0)->set_record_digest(digest);
  EXPECT_TRUE(Try(request).ok());
  request.mutable_slices(0)->set_record_digest(digest + 1);
  EXPECT_EQ(Try(request).status().code(), StatusCode::kFailedPrecondition);
  request.mutable_slices(0)->set_record_digest(digest);

  v1::AppendEntry truncate;
  truncate.mutable_truncate()->mutable_sequence()->set_id("a");
  truncate.mutable_truncate()->set_length(kLength - 1);
  ASSERT_EQ(AppendEntry(cache_, *run_, truncate).code(), 0);
  request.set_draw(6);
  const absl::Status changed = Try(request).status();
  EXPECT_EQ(changed.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(changed.message()),
              HasSubstr("record_digest " + std::to_string(digest) +
                        ", but the records of sequence 'a' attempt 0 positions [0, 200)"));
  EXPECT_FALSE(run_->steps().Find(6).has_value());
  // Sent again as it was, it is the same again.
  AppendBlock(cache_, *run_, records_[0].Block("a"));
  EXPECT_TRUE(Try(request).ok());
  run_->Release({"a", 0});
  EXPECT_EQ(Do(request).totals().missing(), kLength) << "missing, not changed";
}

TEST_F(EvaluateTest, LeasesAreRenewed) {
  const std::vector<SequenceName> names = {{"a", 0}};
  v1::EvaluateRequest request = Request({{0, 0, 1}});
  request.set_lease_id(*run_->Lease(names, absl::Seconds(10)));
  cache_.clock.Advance(absl::Seconds(9));
  EXPECT_TRUE(Try(request).ok());
  cache_.clock.Advance(absl::Seconds(9));
  EXPECT_TRUE(Try(request).ok());
  cache_.clock.Advance(absl::Seconds(11));
  EXPECT_EQ(Try(request).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(EvaluateTest, BadRequestsAreRefusedByNameAndCountNothing) {
  struct Case {
    std::vector<std::string> message;
    std::function<void(v1::EvaluateRequest&)> change;
    bool reduced = false;
  };
  const auto put = [](std::string* bytes, size_t index, float value) {
    ASSERT_LE((index + 1) * sizeof(float), bytes->size());
    std::memcpy(bytes->data() + index * sizeof(float), &value, sizeof(float));
  };
  // A position whose set is full; the request is of [10, 60) of b, then c.
  uint32_t full = 20;
  while (records_[1].log_probs[full * kSlots + kSlots - 1] == kMinusInfinity) ++full;
  const uint32_t row = full - 10;
  const std::string at = " at position " + std::to_string(full);
  const float infinity = HUGE_VALF;
  const Case cases[] = {
      {{"top_k: 6", "5"}, [](auto& r) { r.set_top_k(6); }},
      {{"prefix_curve[0]: 0", "[1, 5]"}, [](auto& r) { r.add_prefix_curve(0); }},
      {{"prefix_curve[1]: 2", "[3, 5]"},
       [](auto& r) {
         r.add_prefix_curve(2);
         r.add_prefix_curve(2);
       }},
      {{"prefix_curve[0]: 4", "[1, 3]"},
       [](auto& r) {
         r.set_top_k(3);
         r.add_prefix_curve(4);
       }},
      {{"prefix_curve[0]: 4294967295"}, [](auto& r) { r.add_prefix_curve(4294967295u); }},
      {{"prefix_curve: 17 points", "16"},
       [](auto& r) {
         for (int k = 1; k <= 17; ++k) r.add_prefix_curve(k);
       }},
      {{"prefix_curve: needs log-probs"}, [](auto& r) { r.add_prefix_curve(1); }, true},
      {{"total_variation: needs log-probs"}, [](auto& r) { r.set_total_variation(true); }, true},
      {{"outputs: 0"}, [](auto& r) { r.add_outputs(v1::OUTPUT_UNSPECIFIED); }},
      {{"outputs: 99"}, [](auto& r) { r.add_outputs(static_cast<v1::Output>(99)); }},
      {{"slices: none"}, [](auto& r) { r.clear_slices(); }},
      {{"slices[1].sequence.id ''"}, [](auto& r) { r.mutable_slices(1)->clear_sequence(); }},
      {{"slices[1] of sequence 'c' attempt 0: length 0"},
       [](auto& r) { r.mutable_slices(1)->set_length(0); }},
      {{"slices[1] of sequence 'c'", "4194300 + length 50", "4194304"},
       [](auto& r) { r.mutable_slices(1)->set_first_position(4194300); }},
      {{"slices overlap at position 59 of sequence 'b' attempt 0"},
       [](auto& r) {
         *r.mutable_slices(1) = r.slices(0);
         r.mutable_slices(1)->set_first_position(59);
       }},
      {{"slices overlap"}, [](auto& r) { *r.mutable_slices(1) = r.slices(0); }},
      {{"form: none is set"}, [](auto& r) { r.clear_form(); }},
      {{"gathered.log_probs: 1996 bytes", "2000"},
       [](auto& r) { r.mutable_gathered()->mutable_log_probs()->resize(1996); }},
      {{"gathered.sampled_log_probs: 404 bytes", "400"},
       [](auto& r) { r.mutable_gathered()->mutable_sampled_log_probs()->resize(404); }},
      {{"reduced.sampled_log_probs: 0 bytes"},
       [](auto& r) { r.mutable_reduced()->clear_sampled_log_probs(); },
       true},
      {{"reduced.log_envelopes: 0 bytes"},
       [](auto& r) { r.mutable_reduced()->clear_log_envelopes(); },
       true},
      {{"reduced.covered_masses: 1 bytes"},
       [](auto& r) { r.mutable_reduced()->set_covered_masses("x"); },
       true},
      {{"sequence 'b' attempt 0: gathered.sampled_log_probs" + at, "nan"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_sampled_log_probs(), row, NAN); }},
      {{"gathered.sampled_log_probs" + at, "inf"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_sampled_log_probs(), row, infinity); }},
      {{"gathered.sampled_log_probs" + at, "0.02"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_sampled_log_probs(), row, 0.02f); }},
      {{"gathered.log_probs" + at + ", slot 3", "nan"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_log_probs(), row * kSlots + 3, NAN); }},
      {{"gathered.log_probs" + at + ", slot 3", "0.5"},
       [&](auto& r) { put(r.mutable_gathered()->mutable_log_probs(), row * kSlots + 3, 0.5f); }},
      {{"gathered.log_probs" + at, "sum to"},
       [&](auto& r) {
         for (int slot = 0; slot < 2; ++slot) {
           put(r.mutable_gathered()->mutable_log_probs(), row * kSlots + slot, -0.1f);
         }
       }},
      {{"reduced.sampled_log_probs" + at, "nan"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_sampled_log_probs(), row, NAN); },
       true},
      {{"reduced.log_envelopes" + at, "nan"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_log_envelopes(), row, NAN); },
       true},
      {{"reduced.log_envelopes" + at, "inf"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_log_envelopes(), row, infinity); },
       true},
      {{"reduced.covered_masses" + at, "nan"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_covered_masses(), row, NAN); },
       true},
      {{"reduced.covered_masses" + at, "-0.1"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_covered_masses(), row, -0.1f); },
       true},
      {{"reduced.covered_masses" + at, "1.02"},
       [&](auto& r) { put(r.mutable_reduced()->mutable_covered_masses(), row, 1.02f); },
       true},
  };
  const std::vector<NamedRange> ranges = {{1, 10, 50}, {2, 10, 50}};
  for (const Case& c : cases) {
    v1::EvaluateRequest request = c.reduced ? ReducedRequest(ranges, kSlots) : Request(ranges);
    c.change(request);
    const absl::Status status = Try(request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << c.message[0];
    for (const std::string& part : c.message) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
    EXPECT_FALSE(run_->steps().Find(1).has_value()) << c.message[0];
  }
  v1::EvaluateRequest lease = Request(ranges);
  lease.set_lease_id(12345);
  EXPECT_EQ(Try(lease).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Try(Request(ranges)).ok()) << "unchanged, it is good";
  EXPECT_TRUE(Try(ReducedRequest(ranges, kSlots)).ok());
}

TEST_F(EvaluateTest, TooManyPositionsAreRefused) {
  Limits limits;
  limits.max_evaluate_positions = 100;
  Cache cache(1 << 24, limits);
  const auto run = cache.CreateRun("r", LosslessConfig(kSlots));
  EXPECT_TRUE(Evaluate(*run, backend_, Request({{0, 0, 60}, {1, 0, 40}})).ok());
  const absl::Status status = Evaluate(*run, backend_, Request({{0, 0, 60}, {1, 0, 41}})).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "slices: 101 positions in all, more than 100");
}

TEST_F(EvaluateTest, ValuesOfMissingPositionsAndUnusedSlotsAreIgnored) {
  v1::EvaluateRequest request = Request({{0, 190, 10}});
  request.mutable_slices(0)->set_length(20);  // the last ten are missing
  const std::string nans(40 * kSlots, '\xff');
  *request.mutable_gathered()->mutable_log_probs() += nans;
  *request.mutable_gathered()->mutable_sampled_log_probs() += nans.substr(0, 40);
  EXPECT_EQ(Do(request).totals().missing(), 10);
}

// Two caches with the same records, in one of which nothing can be packed.
TEST_F(EvaluateTest, PackedPagesAndTailsGiveTheSameBytes) {
  for (const v1::LogProbEncoding encoding : {v1::FLOAT32, v1::FLOAT16, v1::FIXED12}) {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_log_prob_encoding(encoding);
    Cache packing;
    Cache filling;
    const auto packed = packing.CreateRun("r", config);
    const auto tails = filling.CreateRun("r", config);
    std::vector<Arena::Block> rest;
    for (uint32_t first = 0; first < kLength; first += 40) {
      for (size_t i = 0; i < kIds.size(); ++i) {
        const v1::Block block = records_[i].Block(kIds[i], first, 0, first, 40);
        EXPECT_EQ(AppendBlock(packing, *packed, block).code(), 0);
        EXPECT_EQ(AppendBlock(filling, *tails, block).code(), 0);
      }
      // The chunk of the tails has room for all of them; there is no other from now on.
      while (rest.empty() || !rest.back().empty()) {
        rest.push_back(filling.arena->Allocate(Arena::kChunkBytes));
      }
    }
    for (const std::string& id : kIds) {
      ASSERT_TRUE(std::get<std::shared_ptr<Sequence>>(packed->Find({id, 0}))->Seal(kLength).ok());
    }
    ASSERT_LT(packed->Describe().bytes(), tails->Describe().bytes()) << "all or nothing is packed";
    for (int top_k = 1; top_k <= kSlots; ++top_k) {
      // Slices that begin and end within groups.
      for (v1::EvaluateRequest request :
           {Request(all_), Request({{2, 3, 170}, {0, 67, 1}, {1, 16, 100}}),
            ReducedRequest(all_, top_k)}) {
        request.set_top_k(top_k);
        request.add_outputs(v1::LOG_RATIOS);
        const auto a = Evaluate(*packed, *CpuBackend(), request);
        const auto b = Evaluate(*tails, backend_, request);
        ASSERT_TRUE(a.ok()) << a.status();
        ASSERT_TRUE(b.ok()) << b.status();
        EXPECT_TRUE(a->SerializeAsString() == b->SerializeAsString())
            << v1::LogProbEncoding_Name(encoding) << ", top_k " << top_k;
      }
    }
  }
}

TEST_F(EvaluateTest, CorruptPagesAreMissingOnceFound) {
  const auto& sequence = *std::get<std::shared_ptr<Sequence>>(run_->Find({"a", 0}));
  Sequence::Reader(sequence).ForEachPiece(64, 1, [](const Sequence::Reader::Piece& piece) {
    const auto rows = piece.page->Behavior(piece.index, 1).grouped_log_probs.rows;
    const_cast<std::byte&>(rows[7]) ^= std::byte{2};
  });
  v1::FetchTopKRequest fetch_request;
  fetch_request.add_slices()->mutable_sequence()->set_id("a");
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, fetch_request);
  ASSERT_TRUE(fetch.ok());
  v1::FetchTopKResponse message;
  ASSERT_TRUE(fetch->Next(message));
  ASSERT_EQ(message.header().missing_size(), 1);
  const v1::MissingRange fetched = message.header().missing(0);
  EXPECT_EQ(fetched.first_position(), 64);
  EXPECT_EQ(fetched.length(), 64);
  EXPECT_EQ(fetched.reason(), v1::CORRUPT);
  const uint64_t digest = message.header().slices(0).record_digest();
  ASSERT_TRUE(fetch->Next(message));
  const std::vector<float> sampled = Floats(message.chunk().sampled_log_probs());
  for (uint32_t i = 0; i < kLength; ++i) EXPECT_EQ(std::isnan(sampled[i]), i / 64 == 1) << i;

  v1::EvaluateRequest request = Request({{0, 0, kLength}});
  request.mutable_slices(0)->set_record_digest(digest);
  const v1::EvaluateResponse response = Do(request);
  ASSERT_EQ(response.missing_size(), 1);
  EXPECT_EQ(response.missing(0).SerializeAsString(), fetched.SerializeAsString());
  EXPECT_EQ(response.totals().missing(), 64);
}

}  // namespace
}  // namespace sis
