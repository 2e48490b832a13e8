// A backend whose blocks all have tags, so that it may read its own copies of them.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/backend.h"
#include "tests/conformance/positions.h"

namespace sis {

// Evaluates each call twice, the second time with copies that may be resident by then, and expects
// the same bytes.
class WithTags final : public Backend {
 public:
  WithTags(const Backend& backend, const std::string& suffix)
      : backend_(backend), name_(std::string(backend.name()) + suffix) {}

  std::string_view name() const override { return name_; }
  ResidentBlocksStats resident_blocks() const override { return backend_.resident_blocks(); }

  void Evaluate(const EvaluateParameters& parameters,
                std::span<const BackendRange> ranges) const override {
    std::map<const std::byte*, BlockTag> tags;
    std::deque<Results> results;
    std::vector<BackendRange> second(ranges.begin(), ranges.end());
    for (BackendRange& range : second) range.behavior.tag = &tags[range.behavior.block.data()];
    std::vector<BackendRange> first = second;
    for (BackendRange& range : first) {
      Results& own = results.emplace_back(range.behavior.size(), range.prefix_sums.size());
      range.output = own.Output(0, range.behavior.size());
      range.sums = &own.sums;
      range.prefix_sums = own.prefix_sums;
    }
    backend_.Evaluate(parameters, first);
    backend_.Evaluate(parameters, second);
    for (size_t i = 0; i < first.size(); ++i) {
      // Results of invalid values are undefined.
      if (results[i].sums.invalid > 0) continue;
      EXPECT_TRUE(SameBytes(first[i].output, second[i].output)) << "the second time";
    }
  }

 private:
  const Backend& backend_;
  const std::string name_;
};

}  // namespace sis
