// The interface of everything that evaluates positions: plain arrays in, decisions and sums out.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"
#include "kernels/records/fixed_rows.h"
#include "kernels/records/grouped_log_probs.h"
#include "kernels/records/rank_span.h"
#include "kernels/records/record_view.h"

namespace sis {

// What the recorded sets of n consecutive positions hold, besides the ids. -inf marks unused slots,
// which come last.
struct BehaviorView {
  std::span<const float> log_probs;          // [n, K]; or empty, and then one of the last two
  std::span<const float> sampled_log_probs;  // [n]
  RankSpan sampled_ranks;                    // [n], kRankOutside if not in the set
  GroupedLogProbs grouped_log_probs = {};    // the same in groups
  RaggedLogProbs ragged_log_probs = {};      // or without the unused slots
  // If these have a tag, a backend may read its own copy of them instead of the spans above. Then
  // the spans are parts of them, aligned to their elements.
  FixedRows fixed_rows = {};

  // Reads single values of whichever layout it is.
  LogProbReader Reader(int slots) const {
    return {log_probs, grouped_log_probs, static_cast<size_t>(slots), ragged_log_probs};
  }
};

// The current policy's values at the same positions, in one of two forms (docs/numerics.md, section
// 2).
struct CurrentView {
  std::span<const float> sampled_log_probs;  // [n]
  // GATHERED: log-probs at the recorded slots, [n, K].
  std::span<const float> log_probs;
  // REDUCED: used if there are none.
  std::span<const float> log_envelopes;   // [n]
  std::span<const float> covered_masses;  // [n]
  // Beside ragged records GATHERED log-probs may be ragged too: those of one position after the
  // other, of each as many as its record has slots, which this says. Else it is empty.
  std::span<const uint16_t> counts = {};  // [n]

  bool reduced() const { return log_probs.empty() && counts.empty(); }
};

// Reads single values of the GATHERED form. The view must outlive it.
class CurrentReader {
 public:
  CurrentReader(const CurrentView& current, size_t slots) : current_(current), slots_(slots) {
    begins_.reserve(current.counts.size());
    size_t begin = 0;
    for (const uint16_t count : current.counts) {
      begins_.push_back(begin);
      begin += count;
    }
  }

  // -inf where there is none.
  float At(size_t position, size_t slot) const {
    if (!begins_.empty() && slot >= current_.counts[position]) return kMinusInfinity;
    const size_t index = (begins_.empty() ? position * slots_ : begins_[position]) + slot;
    return current_.log_probs[index];
  }

 private:
  const CurrentView& current_;
  const size_t slots_;
  std::vector<size_t> begins_;  // of ragged ones
};

// Where results go. decisions is required; the others may be empty.
struct OutputView {
  std::span<Decision> decisions;                   // [n]
  std::span<float> acceptance_probabilities = {};  // [n]
  std::span<float> log_modified_ratios = {};       // [n]
  std::span<float> modified_ratios = {};           // [n]
  // What the decision was made from: log w, unmodified, log M and the covered mass.
  std::span<float> log_ratios = {};      // [n]
  std::span<float> log_envelopes = {};   // [n]
  std::span<float> covered_masses = {};  // [n]

  void Store(size_t position, const PositionResult& result, Envelope envelope) const {
    decisions[position] = result.decision;
    if (!acceptance_probabilities.empty()) {
      acceptance_probabilities[position] = result.acceptance_probability;
    }
    if (!log_modified_ratios.empty()) log_modified_ratios[position] = result.log_modified_ratio();
    if (!modified_ratios.empty()) modified_ratios[position] = result.modified_ratio();
    if (!log_ratios.empty()) log_ratios[position] = result.log_ratio;
    if (!log_envelopes.empty()) log_envelopes[position] = envelope.log_envelope;
    if (!covered_masses.empty()) covered_masses[position] = envelope.covered_mass;
  }
};

// n consecutive positions of one sequence.
struct Stretch {
  uint64_t sequence_key;
  uint32_t first_position;
  BehaviorView behavior;
  CurrentView current;
  OutputView output;
  Sums* sums;  // added to; stretches of one call may share it
  // Added to, one per entry of EvaluateParameters::prefix_curve; empty if not wanted. Stretches
  // that share `sums` share this too.
  std::span<PrefixSums> prefix_sums = {};
};

inline constexpr size_t kMaxPrefixPoints = 16;

struct EvaluateParameters {
  int slots;  // K, the row length of the [n, K] arrays
  int top_k;  // k in [1, K], the slots used
  uint64_t draw;
  // GATHERED only: add to Sums::total_variation, for an exponential more per slot.
  bool total_variation = false;
  // GATHERED only: the k of the curve's points, rising, each in [1, top_k]; at most
  // kMaxPrefixPoints.
  std::span<const int> prefix_curve = {};
};

// What a backend holds in memory of its own of rows that don't change, and what came of looking for
// them there. All 0 if it keeps none.
struct ResidentRowsStats {
  int64_t capacity_bytes = 0;  // taken at start
  int64_t used_bytes = 0;
  // Stretches with fixed rows, since the start: those whose copy was there,
  int64_t hits = 0;
  // those whose rows were copied there,
  int64_t copies = 0;
  // and those that were sent for the one call, as there was no room that is better used.
  int64_t passes = 0;
  int64_t evictions = 0;  // of copies
};

// Implementations are thread-safe, and give the same bytes for the same valid input
// (docs/numerics.md).
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;

  // Evaluates every stretch; lengths must agree. Records must be valid (ValidateRecords). Current
  // values may be anything: Sums::invalid counts the positions where they are not valid, and if
  // there are any, the caller throws away all that was written. log_probs with counts may change
  // during the call: each value is read once.
  virtual void Evaluate(const EvaluateParameters& parameters,
                        std::span<const Stretch> stretches) const = 0;

  // How many log-probs a call should bring where there is a choice: few enough for a CPU's cache,
  // many enough for what a call costs.
  virtual size_t values_per_call() const { return 32768; }

  virtual ResidentRowsStats resident_rows() const { return {}; }
};

}  // namespace sis
