// A run with three recorded sequences, for tests of Evaluate.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/testing/scalar_backend.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/evaluate_at_once.h"
#include "server/testing/record_generator.h"

namespace sis {

inline constexpr int kSlots = 5;
inline constexpr uint32_t kLength = 200;
inline const std::vector<std::string> kIds = {"a", "b", "c"};

struct NamedRange {
  int sequence;  // index into kIds
  uint32_t first;
  uint32_t count;
};

inline std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

inline void ExpectEqualTotals(const v1::Totals& a, const v1::Totals& b) {
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

  // Returns a GATHERED request for all outputs except RATIOS and LOG_RATIOS.
  v1::EvaluateRequest Request(const std::vector<NamedRange>& ranges, uint64_t draw = 1) const {
    v1::EvaluateRequest request;
    request.set_draw(draw);
    for (const NamedRange& range : ranges) {
      v1::Slice& slice = *request.add_slices();
      slice.mutable_sequence()->set_id(kIds[range.sequence]);
      slice.set_first_position(range.first);
      slice.set_length(range.count);
      Add(current_[range.sequence].Gathered(range.first, range.count), *request.mutable_gathered());
    }
    request.add_outputs(v1::OUTPUT_DECISIONS);
    request.add_outputs(v1::OUTPUT_ACCEPT_BITS);
    request.add_outputs(v1::OUTPUT_ACCEPTANCE_PROBABILITIES);
    return request;
  }
  static void Add(const v1::Gathered& more, v1::Gathered& gathered) {
    *gathered.mutable_counts() += more.counts();
    *gathered.mutable_log_probs() += more.log_probs();
    *gathered.mutable_sampled_log_probs() += more.sampled_log_probs();
  }
  // Returns the index of the first value of position i of the request.
  static size_t FirstValue(const v1::Gathered& gathered, size_t i) {
    return std::accumulate(gathered.counts().begin(), gathered.counts().begin() + i, size_t{0});
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
    return EvaluateAtOnce(*run_, backend_, request);
  }
  v1::EvaluateResponse Do(const v1::EvaluateRequest& request) {
    absl::StatusOr<v1::EvaluateResponse> response = Try(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::EvaluateResponse();
  }
  v1::Totals Step(uint64_t draw) const {
    const auto step = run_->steps().Find(draw);
    return step.has_value() ? ToTotals(step->evaluated.sums) : v1::Totals();
  }

  const std::vector<NamedRange> all_ = {{0, 0, kLength}, {1, 0, kLength}, {2, 0, kLength}};
  Cache cache_;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", LosslessConfig(kSlots));
  ScalarBackend backend_;
  RecordGenerator generator_{kSlots, 1000, 21};
  std::vector<Records> records_;
  std::vector<CurrentValues> current_;
};

}  // namespace sis
