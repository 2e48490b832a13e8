// What the codec packs, every backend reads: the bytes are those of the decoded values,
// token-major.
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/decide/validate_current.h"
#include "kernels/records/log_probs.h"
#include "kernels/testing/decoded_log_probs.h"
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
        std::vector<uint8_t> used(n);
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

}  // namespace
}  // namespace sis
