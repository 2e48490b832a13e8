// What the codec packs, every backend reads: the bytes are those of the decoded values,
// token-major.
#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/decide/validate_current.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/validate.h"
#include "kernels/testing/decoded_log_probs.h"
#include "kernels/testing/random_records.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr LogProbEncoding kEncodings[] = {LogProbEncoding::kFloat32, LogProbEncoding::kFloat16,
                                          LogProbEncoding::kFixed12};

TEST(Encoded, EveryBackendReadsEveryEncoding) {
  std::mt19937_64 random(30);
  for (const int slots : {1, 5, 10, 64}) {
    for (const size_t n : {size_t{1}, size_t{16}, size_t{83}}) {
      const Positions exact = RandomPositions(random, slots, n);
      for (const LogProbEncoding encoding : kEncodings) {
        std::vector<uint16_t> used(n);
        std::vector<std::byte> rows(LogProbBytes(encoding, n, slots));
        EncodeBehaviorLogProbs(encoding, exact.behavior_log_probs, slots, used, rows);

        Positions decoded = exact;
        DecodeLogProbs(encoding, rows, slots, decoded.behavior_log_probs);
        for (size_t i = 0; i < n; ++i) {
          if (decoded.sampled_ranks[i] >= used[i]) decoded.sampled_ranks[i] = kRankOutside;
        }

        const EvaluateParameters parameters{
            .slots = slots, .top_k = (slots + 1) / 2, .draw = random()};
        const Results expected = Evaluate(ScalarBackend(), parameters, 7, 9, decoded);
        for (const Backend* backend : Backends()) {
          Results results(n);
          Stretch stretch = StretchOf(decoded, 0, n, 7, 9, results);
          stretch.behavior.log_probs = {};
          stretch.behavior.grouped_log_probs = {.rows = rows, .encoding = encoding};
          EXPECT_TRUE(ValidateCurrent(stretch.behavior, stretch.current, slots, 9).ok());
          backend->Evaluate(parameters, {&stretch, 1});
          EXPECT_TRUE(SameBytes(results, expected))
              << backend->name() << ", K = " << slots << ", n = " << n << ", encoding "
              << static_cast<int>(encoding);
        }
      }
    }
  }
}

// Ends the sets of runs of positions early, so that groups differ in their longest set.
void CutSomewhere(std::mt19937_64& random, Positions& positions) {
  const size_t slots = positions.slots;
  size_t most = slots;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (random() % 16 == 0) most = random() % (slots + 1);
    const size_t used = std::min(most, random() % (slots + 1));
    std::fill_n(positions.ids.begin() + static_cast<ptrdiff_t>(i * slots + used), slots - used, -1);
    std::fill_n(positions.behavior_log_probs.begin() + static_cast<ptrdiff_t>(i * slots + used),
                slots - used, kMinusInfinity);
    if (positions.sampled_ranks[i] >= used) positions.sampled_ranks[i] = kRankOutside;
  }
}

std::vector<std::byte> PageOf(PageHeader header, const Positions& positions) {
  header = HeaderOf(header, positions.records(), positions.sampled_ranks);
  std::vector<std::byte> page(PageBytes(header));
  EncodePage(header, positions.records(), positions.sampled_ranks, page);
  return page;
}

constexpr int32_t kWideVocabularySize = 4096;

// Positions whose sets have any number of slots, also where that is more than a policy pair has
// tokens.
Positions WidePositions(std::mt19937_64& random, int slots, size_t n) {
  const PageHeader header{LogProbEncoding::kFloat32, slots,
                          kWideVocabularySize,       0,
                          static_cast<uint32_t>(n),  PageVersion::kRagged};
  const Records records = RandomRecords(header, static_cast<uint32_t>(random()));
  Positions positions;
  positions.slots = slots;
  positions.sampled_ids = records.sampled_ids;
  positions.behavior_sampled_log_probs = records.sampled_log_probs;
  positions.sampled_ranks.resize(n);
  positions.ids = records.ids;
  positions.behavior_log_probs = records.log_probs;
  const absl::Status valid =
      ValidateRecords(positions.records(), slots, kWideVocabularySize, 0, positions.sampled_ranks);
  EXPECT_TRUE(valid.ok()) << valid;
  const auto lowered = [&](float log_prob) {
    return log_prob - static_cast<float>(random() % 256) / 512;
  };
  for (const float log_prob : records.log_probs) {
    positions.current_log_probs.push_back(lowered(log_prob));
  }
  for (const float log_prob : records.sampled_log_probs) {
    positions.current_sampled_log_probs.push_back(lowered(log_prob));
  }
  return positions;
}

// Ragged pages decide as those that have room for K slots, of the same records; where none has,
// as the records that are read of them.
TEST(Encoded, EveryBackendReadsRaggedPages) {
  std::mt19937_64 random(31);
  for (const int slots : {1, 5, 10, 64, 100, 254, 255, 256, 300, 511, 512}) {
    for (const size_t n : {size_t{1}, size_t{16}, size_t{83}}) {
      const bool is_wide = slots > kMaxTopKOfByteRanks;
      Positions exact =
          is_wide ? WidePositions(random, slots, n) : RandomPositions(random, slots, n);
      if (!is_wide) CutSomewhere(random, exact);
      for (const LogProbEncoding encoding : kEncodings) {
        PageHeader header{encoding, slots, is_wide ? kWideVocabularySize : kPairVocabularySize, 9,
                          static_cast<uint32_t>(n)};
        PageHeader ragged_header = header;
        ragged_header.version = PageVersion::kRagged;
        const std::vector<std::byte> ragged = PageOf(ragged_header, exact);
        ASSERT_TRUE(DecodePage(ragged).ok()) << DecodePage(ragged).status();
        if (is_wide) header = ragged_header;
        const DecodedPage fixed = *DecodePage(PageOf(header, exact));
        Positions decoded = exact;
        decoded.behavior_log_probs = fixed.log_probs;
        decoded.sampled_ranks = fixed.ranks;
        const PageView view = *OpenPage(ragged);
        UnpackedCounts counts;
        UnpackCounts(view, counts);
        ASSERT_TRUE(std::ranges::equal(counts.ranks, fixed.ranks));

        std::vector<int> curve;
        // With a curve others decide in the place of a device.
        const bool with_curve = random() % 2 == 0;
        for (int k = 1; with_curve && k <= (slots + 1) / 2; k += 1 + slots / 12) {
          curve.push_back(k);
        }
        const EvaluateParameters parameters{.slots = slots,
                                            .top_k = (slots + 1) / 2,
                                            .draw = random(),
                                            .total_variation = random() % 2 == 0,
                                            .prefix_curve = curve};
        const Results expected = Evaluate(ScalarBackend(), parameters, 7, 9, decoded);
        for (const Backend* backend : Backends()) {
          Results results(n, curve.size());
          std::vector<Stretch> stretches;
          // Parts that begin and end anywhere.
          for (size_t first = 0, count; first < n; first += count) {
            count = std::min<size_t>(1 + random() % 40, n - first);
            stretches.push_back(StretchOf(decoded, first, count, 7, 9, results));
            stretches.back().behavior.log_probs = {};
            stretches.back().behavior.ragged_log_probs =
                RaggedLogProbsOf(view, counts, first, count);
            EXPECT_TRUE(ValidateCurrent(stretches.back().behavior, stretches.back().current, slots,
                                        9 + static_cast<uint32_t>(first))
                            .ok());
          }
          backend->Evaluate(parameters, stretches);
          EXPECT_TRUE(SameBytes(results, expected))
              << backend->name() << ", K = " << slots << ", n = " << n << ", encoding "
              << static_cast<int>(encoding);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sis
