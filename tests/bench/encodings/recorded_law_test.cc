// The law of accepted tokens on recorded log-probs of real models, by enumeration, in every
// encoding.
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/encoded_position.h"
#include "tests/bench/encodings/policy_pairs.h"

namespace sis {
namespace {

using enum LogProbEncoding;

void ExpectLawOn(const PolicyPairs& pairs) {
  ASSERT_FALSE(pairs.positions.empty());
  for (const LogProbEncoding behavior : {kFloat32, kFloat16, kFixed12}) {
    for (const PolicyPair& pair : pairs.positions) {
      const RandomPosition position{pair.behavior, pair.current, pair.behavior.size()};
      const Encoded encoded = Encode(behavior, position);
      ASSERT_EQ(encoded.used, pairs.slots);
      EveryDraw draws(position, encoded.used);
      const std::vector<float> envelopes(encoded.used, encoded.envelope.log_envelope);
      const std::vector<float> masses(encoded.used, 1.0f);
      draws.Evaluate(pairs.slots, {},
                     {.sampled_log_probs = draws.current_sampled,
                      .log_probs = {},
                      .log_envelopes = envelopes,
                      .covered_masses = masses});
      draws.ExpectLawFor(encoded.envelope.log_envelope);
    }
  }
}

TEST(RecordedLaw, HoldsInEveryEncoding) {
  const char* folder = std::getenv("SIS_RECORDED_DATA");
  if (folder == nullptr) GTEST_SKIP() << "no recorded log-probs: $SIS_RECORDED_DATA is not set";
  for (const char* model : {"qwen-3-1-7b", "gemma-3-270m"}) {
    const std::string path = std::string(folder) + "/" + model;
    const auto recorded = RecordedPairs(model, path + "_cpu.json", path + "_cuda.json");
    ASSERT_TRUE(recorded.ok()) << recorded.status();
    ExpectLawOn(*recorded);
    const auto drifted = RecordedSetsWithDrift(model, path + "_cpu.json", 0.2);
    ASSERT_TRUE(drifted.ok()) << drifted.status();
    ExpectLawOn(*drifted);
  }
}

}  // namespace
}  // namespace sis
