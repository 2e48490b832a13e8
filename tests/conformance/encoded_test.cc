// What the codec packs, every backend reads: the bytes are those of the decoded values,
// token-major.
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/records/log_probs.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr LogProbEncoding kEncodings[] = {LogProbEncoding::kFloat32, LogProbEncoding::kFloat16,
                                          LogProbEncoding::kFixed12};

TEST(Encoded, EveryBackendReadsEveryPairOfEncodings) {
  std::mt19937_64 random(30);
  for (const int slots : {1, 5, 10, 64}) {
    for (const size_t n : {size_t{1}, size_t{16}, size_t{83}}) {
      const Positions exact = RandomPositions(random, slots, n);
      for (const LogProbEncoding behavior : kEncodings) {
        for (const LogProbEncoding current : kEncodings) {
          std::vector<uint8_t> used(n);
          std::vector<std::byte> behavior_rows(LogProbBytes(behavior, n, slots));
          std::vector<std::byte> current_rows(LogProbBytes(current, n, slots));
          EncodeBehaviorLogProbs(behavior, exact.behavior_log_probs, slots, used, behavior_rows);
          EncodeCurrentLogProbs(current, exact.current_log_probs, slots, used, current_rows);

          Positions decoded = exact;
          DecodeLogProbs(behavior, behavior_rows, slots, decoded.behavior_log_probs);
          DecodeLogProbs(current, current_rows, slots, decoded.current_log_probs);
          for (size_t i = 0; i < n; ++i) {
            if (decoded.sampled_ranks[i] >= used[i]) decoded.sampled_ranks[i] = kRankOutside;
          }

          const EvaluateParameters parameters{
              .slots = slots, .top_k = (slots + 1) / 2, .draw = random()};
          const Results expected = Evaluate(ScalarBackend(), parameters, 7, 9, decoded);
          for (const Backend* backend : Backends()) {
            Results results(n);
            Segment segment = SegmentOf(decoded, 0, n, 7, 9, results);
            segment.behavior.log_probs = {};
            segment.behavior.grouped_log_probs = {.rows = behavior_rows, .encoding = behavior};
            segment.current.log_probs = {};
            segment.current.grouped_log_probs = {.rows = current_rows, .encoding = current};
            // Rounding current values up may lift a mass above its limit; 1/64 is more than enough.
            EXPECT_TRUE(ValidateCurrent(segment.behavior, segment.current, slots, 9).ok());
            backend->Evaluate(parameters, {&segment, 1});
            EXPECT_TRUE(SameBytes(results, expected))
                << backend->name() << ", K = " << slots << ", n = " << n << ", encodings "
                << static_cast<int>(behavior) << " and " << static_cast<int>(current);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sis
