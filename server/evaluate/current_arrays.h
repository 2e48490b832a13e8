// The current policy's values in a request, in whichever form, and wherever they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/top_k_sets/top_k_sets.h"
#include "kernels/page/encoded_page.h"
#include "server/cache/limits.h"
#include "server/cache/run_config.h"
#include "server/evaluate/dense_logits.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class CurrentArrays {
 public:
  // Memory to read into. What was read before is overwritten.
  struct Scratch {
    std::vector<float> sampled_log_probs;
    std::vector<float> log_probs;
    std::vector<float> log_envelopes;
    std::vector<float> covered_masses;
    std::vector<int32_t> set_ids;
    std::vector<float> set_log_probs;
    DenseLogits::Scratch dense;
    std::vector<uint16_t> halves;  // float16 log-probs or bfloat16 logits
    std::vector<float> logits;
    std::vector<float> rows;  // what was ragged, in rows
    std::vector<double> log_sum_exps;
  };

  // InvalidArgument names the field.
  static absl::StatusOr<CurrentArrays> Parse(const v1::EvaluateRequest& request,
                                             const ReceivedArrays& arrays, size_t count,
                                             const RunConfig& config, const Limits& limits);

  // Whether the values at the recorded slots have yet to be found in what the form holds.
  bool need_records() const { return set_slots_ != 0 || dense_.has_value(); }
  // The logits, if that is the form. Then the sampled tokens' log-probs depend on it too.
  const DenseLogits* dense() const { return dense_ ? &*dense_ : nullptr; }
  // How much there is to read of a position.
  size_t values_per_position() const;

  // The positions [first, first + count) of the request, as log-probs whatever was sent, or room
  // for them if they need records. If each_once, values may still lie in a segment: then each must
  // be read only once, as a backend does, with a GuardedAccess to `segment`.
  CurrentView Read(size_t first, size_t count, Scratch& scratch, bool each_once) const;
  const SharedSegment* segment() const { return log_probs_.segment(); }
  // The positions [first, first + count) of the request, of a view that was read from `read_first`
  // on.
  CurrentView Part(const CurrentView& view, size_t read_first, size_t first, size_t count) const;
  // If the form is ragged, how many slots each of these positions has; else empty.
  bool ragged() const { return !counts_.empty(); }
  std::span<const uint16_t> Counts(size_t first, size_t count) const {
    return ragged() ? std::span(counts_).subspan(first, count) : std::span<const uint16_t>();
  }
  // Fills in these positions, of which the first is number `row` of that room; the form is DENSE.
  // InvalidArgument names field, position and value.
  absl::Status GatherAtRecords(const RecordRows& records, const PositionRange& positions,
                               size_t row, Scratch& scratch) const;
  // The same of TOP_K.
  absl::Status ReduceSets(const RecordedSets& records, const PositionRange& positions, size_t row,
                          Scratch& scratch) const;
  // Only the sampled tokens' log-probs of them; room for them if they are dense.
  std::span<const float> ReadSampled(size_t first, size_t count, Scratch& scratch) const;

 private:
  absl::Status ParseGathered(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                             size_t count);
  absl::Status ParseCounts(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                           size_t count);
  // Of a ragged form.
  void ReadRagged(size_t first, size_t count, Scratch& scratch, bool each_once,
                  CurrentView& view) const;
  // How many values the positions before have. The position must be there.
  size_t RaggedBegin(size_t position) const;
  bool of_logits() const {
    return values_ == v1::Gathered::LOGITS || values_ == v1::Gathered::BFLOAT16_LOGITS;
  }
  std::span<const float> ReadLogits(const ArrayField& array, size_t first, size_t count,
                                    Scratch& scratch) const;
  template <typename Value, typename Sampled>
  absl::Status TakeGathered(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                            size_t count);
  // Rows of `width` log-probs, or of logits, which are normalised.
  std::span<const float> ReadLogProbs(const ArrayField& rows, size_t width, size_t first,
                                      size_t count, Scratch& scratch,
                                      std::vector<float>& log_probs) const;

  absl::Status ParseTopKSet(const v1::TopK& set, const ReceivedArrays& arrays, size_t count,
                            int max_top_k);

  size_t slots_ = 0;
  int32_t vocabulary_size_ = 0;
  // What the first two hold.
  v1::Gathered::Values values_ = v1::Gathered::LOG_PROBS;
  ArrayField sampled_log_probs_;
  ArrayField log_probs_;
  // If it is ragged, how many values each position has; and how many come before every so many
  // positions, and in all.
  static constexpr size_t kPositionsPerBegin = 64;
  std::vector<uint16_t> counts_;
  std::vector<uint64_t> begins_;
  uint64_t all_values_ = 0;
  ArrayField log_sum_exps_;
  ArrayField log_envelopes_;
  ArrayField covered_masses_;
  std::optional<DenseLogits> dense_;
  size_t set_slots_ = 0;  // K' of TOP_K
  ArrayField set_ids_;
  ArrayField set_log_probs_;
};

}  // namespace sis
