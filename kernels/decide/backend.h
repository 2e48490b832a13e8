// The interface of backends, which evaluate positions: plain arrays in, decisions and sums out.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/block/block.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"

namespace sis {

// The current policy's values at n positions, in one of two forms (docs/numerics.md, section 2).
struct CurrentView {
  std::span<const float> sampled_log_probs;  // [n]
  // GATHERED: log-probs at the used slots of one position after the other.
  std::span<const float> log_probs;
  // REDUCED; empty if GATHERED.
  std::span<const float> log_envelopes;   // [n]
  std::span<const float> covered_masses;  // [n]

  bool reduced() const { return !log_envelopes.empty(); }
};

// The arrays for the results. decisions is required; the others may be empty.
struct OutputView {
  std::span<Decision> decisions;                   // [n]
  std::span<float> acceptance_probabilities = {};  // [n]
  std::span<float> log_modified_ratios = {};       // [n]
  std::span<float> modified_ratios = {};           // [n]
  // The inputs of the decision: log w, unmodified, log M and the covered mass.
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
struct BackendRange {
  uint64_t sequence_key;
  uint32_t first_position;
  BlockRange behavior;
  CurrentView current;
  OutputView output;
  Sums* sums;  // receives the range's sums in addition; ranges of one call may share it
  // Receive the sums in addition, one per entry of EvaluateParameters::prefix_curve; empty if not
  // wanted. Ranges that share `sums` share these too.
  std::span<PrefixSums> prefix_sums = {};
};

inline constexpr size_t kMaxPrefixPoints = 16;

struct EvaluateParameters {
  int top_k;  // k, at least 1: the number of slots used of larger sets
  uint64_t draw;
  // GATHERED only: also compute Sums::total_variation. Costs another exponential per slot.
  bool total_variation = false;
  // GATHERED only: the k of the curve's points, ascending, each in [1, top_k]; at most
  // kMaxPrefixPoints.
  std::span<const int> prefix_curve = {};
};

// Use of the copies of blocks that a backend keeps in a device's memory. All 0 if it keeps none.
struct ResidentBlocksStats {
  int64_t capacity_bytes = 0;  // allocated at start
  int64_t used_bytes = 0;
  // Counts since the start, of ranges of blocks with a tag: whose copy was resident; whose block
  // was copied to stay; and whose data was sent for one call only, as other copies are used more.
  int64_t hits = 0;
  int64_t copies = 0;
  int64_t passes = 0;
  int64_t evictions = 0;  // of copies
};

// Implementations are thread-safe, and return the same bytes for the same valid input
// (docs/numerics.md).
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;

  // Evaluates every range; lengths must agree. Blocks must be valid (CheckBlock). Current values
  // may be invalid: Sums::invalid counts such positions, and if it is not 0 the caller must discard
  // all output.
  virtual void Evaluate(const EvaluateParameters& parameters,
                        std::span<const BackendRange> ranges) const = 0;

  // Returns the preferred number of log-probs per call: few enough for a CPU's cache, enough to
  // outweigh the cost of a call.
  virtual size_t values_per_call() const { return 32768; }

  virtual ResidentBlocksStats resident_blocks() const { return {}; }
};

}  // namespace sis
