#include "tests/conformance/positions.h"

#include <cstring>

namespace sis {
namespace {

template <typename T>
std::vector<T> Rows(const std::vector<T>& values, size_t first, size_t count, size_t width) {
  if (values.empty()) return {};
  return {values.begin() + static_cast<ptrdiff_t>(first * width),
          values.begin() + static_cast<ptrdiff_t>((first + count) * width)};
}

template <typename T>
std::span<const T> SpanOfRows(std::span<const T> values, size_t first, size_t count, size_t width) {
  return values.empty() ? values : values.subspan(first * width, count * width);
}

template <typename T>
bool SameVectorBytes(const std::vector<T>& left, const std::vector<T>& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(T)) == 0);
}

}  // namespace

RecordView Positions::records() const {
  return {sampled_ids, behavior_sampled_log_probs, ids, behavior_log_probs};
}

BehaviorView Positions::behavior() const {
  return {behavior_log_probs, behavior_sampled_log_probs, sampled_ranks};
}

CurrentView Positions::current() const {
  return {current_sampled_log_probs, current_log_probs, log_envelopes, covered_masses};
}

Positions Positions::Slice(size_t first, size_t count) const {
  const size_t k = slots;
  return {
      .slots = slots,
      .sampled_ids = Rows(sampled_ids, first, count, 1),
      .behavior_sampled_log_probs = Rows(behavior_sampled_log_probs, first, count, 1),
      .sampled_ranks = Rows(sampled_ranks, first, count, 1),
      .ids = Rows(ids, first, count, k),
      .behavior_log_probs = Rows(behavior_log_probs, first, count, k),
      .current_sampled_log_probs = Rows(current_sampled_log_probs, first, count, 1),
      .current_log_probs = Rows(current_log_probs, first, count, k),
      .log_envelopes = Rows(log_envelopes, first, count, 1),
      .covered_masses = Rows(covered_masses, first, count, 1),
  };
}

Stretch StretchOf(const Positions& positions, size_t first, size_t count, uint64_t sequence_key,
                  uint32_t first_position, Results& results) {
  const size_t k = positions.slots;
  const BehaviorView behavior = positions.behavior();
  const CurrentView current = positions.current();
  return {
      .sequence_key = sequence_key,
      .first_position = first_position + static_cast<uint32_t>(first),
      .behavior = {SpanOfRows(behavior.log_probs, first, count, k),
                   SpanOfRows(behavior.sampled_log_probs, first, count, 1),
                   behavior.sampled_ranks.subspan(first, count)},
      .current = {SpanOfRows(current.sampled_log_probs, first, count, 1),
                  SpanOfRows(current.log_probs, first, count, k),
                  SpanOfRows(current.log_envelopes, first, count, 1),
                  SpanOfRows(current.covered_masses, first, count, 1)},
      .output = {std::span(results.decisions).subspan(first, count),
                 std::span(results.acceptance_probabilities).subspan(first, count),
                 std::span(results.log_modified_ratios).subspan(first, count),
                 std::span(results.modified_ratios).subspan(first, count),
                 std::span(results.log_ratios).subspan(first, count),
                 std::span(results.log_envelopes).subspan(first, count),
                 std::span(results.covered_masses).subspan(first, count)},
      .sums = &results.sums,
      .prefix_sums = results.prefix_sums,
  };
}

Results Evaluate(const Backend& backend, const EvaluateParameters& parameters,
                 uint64_t sequence_key, uint32_t first_position, const Positions& positions) {
  Results results(positions.size(), parameters.prefix_curve.size());
  const Stretch stretch =
      StretchOf(positions, 0, positions.size(), sequence_key, first_position, results);
  backend.Evaluate(parameters, std::span(&stretch, 1));
  return results;
}

testing::AssertionResult SameBytes(const Results& left, const Results& right) {
  if (!SameVectorBytes(left.decisions, right.decisions)) {
    return testing::AssertionFailure() << "decisions differ";
  }
  if (!SameVectorBytes(left.acceptance_probabilities, right.acceptance_probabilities)) {
    return testing::AssertionFailure() << "acceptance probabilities differ";
  }
  if (!SameVectorBytes(left.log_modified_ratios, right.log_modified_ratios)) {
    return testing::AssertionFailure() << "log modified ratios differ";
  }
  if (!SameVectorBytes(left.modified_ratios, right.modified_ratios)) {
    return testing::AssertionFailure() << "modified ratios differ";
  }
  if (!SameVectorBytes(left.log_ratios, right.log_ratios)) {
    return testing::AssertionFailure() << "log ratios differ";
  }
  if (!SameVectorBytes(left.log_envelopes, right.log_envelopes)) {
    return testing::AssertionFailure() << "log-envelopes differ";
  }
  if (!SameVectorBytes(left.covered_masses, right.covered_masses)) {
    return testing::AssertionFailure() << "covered masses differ";
  }
  if (!(left.sums == right.sums)) return testing::AssertionFailure() << "sums differ";
  if (left.prefix_sums != right.prefix_sums) {
    return testing::AssertionFailure() << "prefix curves differ";
  }
  return testing::AssertionSuccess();
}

}  // namespace sis
