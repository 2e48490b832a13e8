// The current policy's values in a request, of either form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decide/backend.h"
#include "server/cache/run_config.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Views of the arrays of a request.
class CurrentArrays {
 public:
  // Returns InvalidArgument, naming the field, unless the arrays are those of `count` positions.
  // The request must outlive the object.
  static absl::StatusOr<CurrentArrays> Parse(const v1::EvaluateRequest& request, size_t count,
                                             const RunConfig& config);

  // Values to read per position, on average, rounded up.
  size_t values_per_position() const;
  // The sampled tokens' log-probs at all positions.
  std::span<const float> sampled_log_probs() const { return sampled_log_probs_; }

  // Returns the values at positions [first, first + behavior.size()) of the request, beside their
  // records, which begin at `first_position` of their sequence. Returns FailedPrecondition unless
  // the counts, if they were sent, are those of the records. Padded log-probs are copied to
  // `compacted`, which must have space for them and outlive the view.
  absl::StatusOr<CurrentView> Read(const BlockRange& behavior, size_t first,
                                   uint32_t first_position, std::span<float> compacted) const;
  // Elements of `compacted` per position.
  size_t compacted_per_position() const { return padded() ? slots_ : 0; }

 private:
  absl::Status ParseGathered(const v1::Gathered& gathered, size_t count);
  absl::Status ParseCounts(const v1::Gathered& gathered, size_t count);
  bool reduced() const { return !log_envelopes_.empty(); }
  bool padded() const { return !reduced() && counts_.empty(); }
  // Values of the positions before. The position must be there.
  size_t Begin(size_t position) const;

  size_t slots_ = 0;
  std::span<const float> sampled_log_probs_;
  std::span<const float> log_probs_;
  // If they were sent, the number of values of each position, of all before each multiple of
  // kPositionsPerBegin, and of all.
  static constexpr size_t kPositionsPerBegin = 64;
  std::span<const uint16_t> counts_;
  std::vector<uint64_t> begins_;
  uint64_t all_values_ = 0;
  std::span<const float> log_envelopes_;
  std::span<const float> covered_masses_;
};

}  // namespace sis
