// The plain types of the client: names, ranges, what comes back. Settings and totals are the
// messages of sis.v1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/decide/algorithms/algorithm_input.h"
#include "kernels/decide/decide.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// A run; incarnation 0 is the present one.
struct RunRef {
  std::string run_id;
  uint64_t incarnation = 0;
};

// One response; the same id generated again is another attempt.
struct SequenceRef {
  std::string id;
  uint32_t attempt = 0;

  friend bool operator==(const SequenceRef&, const SequenceRef&) = default;
};

// Positions first_position, ..., first_position + length - 1 of a sequence.
struct Slice {
  SequenceRef sequence;
  uint32_t first_position = 0;
  // In FetchTopK, 0 means up to the committed length. What it then returns of a lost sequence has
  // length 0 too.
  uint32_t length = 0;
  // As FetchTopK returned it; Evaluate refuses the slice if the records have changed since.
  std::optional<uint64_t> record_digest = std::nullopt;
};

// What FetchTopK returns: N positions, slice by slice. Missing ones hold -1, NaN, -1 and -inf: an
// id of -1 is no index, and has no log-prob under any policy (client/api/gather.h). Arrays that
// were not asked for are empty. Fetched ragged, ids and log_probs hold the S used slots alone, one
// position's after the other's, and missing positions have none. Copies share the arrays, which are
// there as long as one of them is.
struct TopKRecords {
  // 0 if no lease was asked for.
  uint64_t lease_id = 0;
  // K.
  int top_k = 0;
  // Those of the request, with length and digest filled in: pass them to Evaluate.
  std::vector<Slice> slices;
  std::vector<v1::MissingRange> missing;
  std::span<const int32_t> sampled_ids;      // [N]
  std::span<const float> sampled_log_probs;  // [N], nats
  std::span<const int32_t> ids;              // [N, K], most probable first; -1 marks an unused slot
  std::span<const float> log_probs;          // [N, K], nats; -inf in unused slots
  std::span<const uint16_t> top_k_counts;    // [N], the used slots of each, if ragged; else empty
  // What the arrays lie in.
  std::shared_ptr<const void> memory;

  // N.
  size_t positions() const;
};

// The current policy's log-probs at the recorded slots (nats), for all N positions of the slices.
struct GatheredValues {
  std::span<const float> log_probs;          // [N, K], in the order of the record
  std::span<const float> sampled_log_probs;  // [N], from the same computation
  // Given, as the records have them, log_probs are [S], of used slots alone.
  std::span<const uint16_t> top_k_counts = {};  // [N]
};

// The same, reduced where the values are (client/api/reduce.h).
struct ReducedValues {
  std::span<const float> sampled_log_probs;  // [N]
  std::span<const float> log_envelopes;      // [N]
  std::span<const float> covered_masses;     // [N]
};

// The results over N positions; an array that was not asked for is empty.
struct Evaluation {
  std::vector<uint8_t> accept_bits;             // [ceil(N / 8)], see accepted()
  std::vector<Decision> decisions;              // [N]
  std::vector<float> ratios;                    // [N], the modified ratio
  std::vector<float> log_ratios;                // [N], nats
  std::vector<float> acceptance_probabilities;  // [N]
  std::vector<float> surrogates;                // [N]
  std::vector<float> coefficients;              // [N]
  std::vector<v1::Totals> slice_totals;
  v1::Totals totals;
  // As asked for, in order.
  std::vector<v1::PrefixPoint> prefix_curve;
  // With EvaluateOptions::observe: "plain", "clipped", "applied", then these. Else empty.
  std::vector<v1::CorrectionTotals> corrections;
  std::vector<v1::MissingRange> missing;
  // Positions that this call added to the totals of the step.
  uint64_t newly_counted = 0;
  // With GSPO, one per slice: what it adds to its sequence. Else empty.
  std::vector<LogRatioSum> log_ratio_sums;

  // From the accept bits, which must have been asked for.
  bool accepted(size_t i) const { return (accept_bits[i / 8] >> (i % 8) & 1) != 0; }
};

}  // namespace sis
