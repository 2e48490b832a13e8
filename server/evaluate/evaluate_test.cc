#include "server/evaluate/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "kernels/decide/simd_backend.h"
#include "kernels/numerics/philox.h"
#include "kernels/numerics/sequence_key.h"
#include "server/testing/evaluate_fixture.h"

namespace sis {
namespace {

const SimdBackend kVectors;

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

// What one call masks another may count, whichever comes first.
TEST_F(EvaluateTest, TotalsOfAStepDoNotDependOnTheOrderOfMaskedCalls) {
  std::mt19937 random(9);
  std::vector<v1::EvaluateRequest> requests;
  const auto add = [&](const std::vector<NamedRange>& ranges, auto&& kept) {
    v1::EvaluateRequest& request = requests.emplace_back(Request(ranges));
    for (const NamedRange& range : ranges) {
      for (uint32_t i = 0; i < range.count; ++i) request.mutable_mask()->push_back(kept(i) ? 1 : 0);
    }
  };
  add({{0, 10, 3}}, [](uint32_t) { return false; });
  add({{0, 10, 3}}, [](uint32_t) { return true; });
  add({{0, 0, 50}, {1, 20, 90}}, [](uint32_t i) { return i % 20 < 13; });
  add({{1, 0, 200}, {2, 0, 40}}, [&](uint32_t) { return random() % 3 != 0; });
  add({{2, 30, 60}}, [](uint32_t) { return false; });
  std::vector<int> order = {0, 1, 2, 3, 4};
  std::set<std::string> steps;
  for (int permutation = 0; permutation < 120; ++permutation) {
    Cache cache;
    const auto run = cache.CreateRun("r", LosslessConfig(kSlots));
    for (size_t i = 0; i < kIds.size(); ++i) AppendBlock(cache, *run, records_[i].Block(kIds[i]));
    uint64_t newly_counted = 0;
    for (const int i : order) {
      const auto response = EvaluateAtOnce(*run, backend_, requests[i]);
      ASSERT_TRUE(response.ok()) << response.status();
      newly_counted += response->newly_counted();
      const auto again = EvaluateAtOnce(*run, backend_, requests[i]);
      EXPECT_EQ(again->newly_counted(), 0);
    }
    const v1::GetStepResponse step = ToMessage(*run->steps().Find(1));
    EXPECT_EQ(step.totals().accepted() + step.totals().rejected() + step.totals().outside_top_k(),
              newly_counted);
    EXPECT_GT(step.totals().masked(), 0);
    steps.insert(step.SerializeAsString());
    std::ranges::next_permutation(order);
  }
  EXPECT_EQ(steps.size(), 1);
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

// Two caches with the same records, in one of which nothing can be packed.
TEST_F(EvaluateTest, PackedPagesAndTailsGiveTheSameBytes) {
  for (const v1::LogProbEncoding encoding : {v1::FLOAT32, v1::FLOAT16, v1::FIXED12}) {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_log_prob_encoding(encoding);
    Cache packing;
    Cache filling;
    const auto packed = packing.CreateRun("r", config);
    const auto tails = filling.CreateRun("r", config);
    std::vector<Arena::Allocation> rest;
    for (uint32_t first = 0; first < kLength; first += 40) {
      for (size_t i = 0; i < kIds.size(); ++i) {
        const v1::Block block = records_[i].Block(kIds[i], first, 0, first, 40);
        EXPECT_EQ(AppendBlock(packing, *packed, block).code(), 0);
        EXPECT_EQ(AppendBlock(filling, *tails, block).code(), 0);
      }
      // The chunk of the tails has room for all of them; there is no other from now on.
      while (rest.empty() || !rest.back().empty()) {
        rest.push_back(filling.arena->Allocate(Arena::kSlabBytes));
      }
    }
    for (const std::string& id : kIds) {
      ASSERT_TRUE(std::get<std::shared_ptr<Sequence>>(packed->Find({id, 0}))->Seal(kLength).ok());
    }
    ASSERT_LT(packed->Describe().bytes, tails->Describe().bytes) << "all or nothing is packed";
    for (int top_k = 1; top_k <= kSlots; ++top_k) {
      // Slices that begin and end within groups.
      for (v1::EvaluateRequest request :
           {Request(all_), Request({{2, 3, 170}, {0, 67, 1}, {1, 16, 100}}),
            ReducedRequest(all_, top_k)}) {
        request.set_top_k(top_k);
        request.add_outputs(v1::LOG_RATIOS);
        const auto a = EvaluateAtOnce(*packed, SimdBackend(), request);
        const auto b = EvaluateAtOnce(*tails, backend_, request);
        ASSERT_TRUE(a.ok()) << a.status();
        ASSERT_TRUE(b.ok()) << b.status();
        EXPECT_TRUE(a->SerializeAsString() == b->SerializeAsString())
            << v1::LogProbEncoding_Name(encoding) << ", top_k " << top_k;
      }
    }
  }
}

// Two runs with the same records, one of which has a target that no set reaches: its pages hold the
// slots that exist.
TEST_F(EvaluateTest, RaggedPagesGiveTheSameBytes) {
  std::vector<v1::EvaluateRequest> requests = {
      Request(all_), Request({{2, 3, 170}, {0, 67, 1}, {1, 16, 100}}), ReducedRequest(all_, 3)};
  for (const uint32_t k : {1, 3, 5}) requests[0].add_prefix_curve(k);
  requests[1].set_total_variation(true);
  std::string mask;
  for (uint32_t i = 0; i < 271; ++i) mask.push_back(i % 7 == 3 || i / 20 % 3 == 1 ? '\0' : '\1');
  requests[1].set_mask(mask);

  for (const v1::LogProbEncoding encoding : {v1::FLOAT32, v1::FLOAT16, v1::FIXED12}) {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_log_prob_encoding(encoding);
    Cache with_room, as_long;
    const auto fixed = with_room.CreateRun("r", config);
    config.set_mass(0.9999999);
    const auto ragged = as_long.CreateRun("r", config);
    for (auto [cache, run] : {std::pair(&with_room, fixed), std::pair(&as_long, ragged)}) {
      for (size_t i = 0; i < kIds.size(); ++i) {
        EXPECT_EQ(AppendBlock(*cache, *run, records_[i].Block(kIds[i])).code(), 0);
        EXPECT_TRUE(
            std::get<std::shared_ptr<Sequence>>(run->Find({kIds[i], 0}))->Seal(kLength).ok());
      }
    }
    EXPECT_LT(ragged->Describe().bytes, fixed->Describe().bytes);
    for (size_t i = 0; i < requests.size(); ++i) {
      v1::EvaluateRequest request = requests[i];
      request.add_outputs(v1::LOG_RATIOS);
      for (const Backend* backend : std::initializer_list<const Backend*>{&backend_, &kVectors}) {
        request.set_draw(request.draw() + 1);
        const auto a = EvaluateAtOnce(*fixed, *backend, request);
        const auto b = EvaluateAtOnce(*ragged, *backend, request);
        ASSERT_TRUE(a.ok()) << i << ": " << a.status();
        ASSERT_TRUE(b.ok()) << i << ": " << b.status();
        EXPECT_TRUE(a->SerializeAsString() == b->SerializeAsString())
            << v1::LogProbEncoding_Name(encoding) << ", request " << i << ", " << backend->name();
      }
    }
  }
}

}  // namespace
}  // namespace sis
