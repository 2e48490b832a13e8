// The current policy's values in a request, GATHERED or REDUCED.
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

  // Returns the average number of values per position, rounded up.
  size_t values_per_position() const;
  std::span<const float> sampled_log_probs() const { return sampled_log_probs_; }

  // Returns the values at positions [first, first + behavior.size()) of the request. `behavior` has
  // the records of these positions, which begin at `first_position` of their sequence. Returns
  // FailedPrecondition if the request's counts differ from the records'.
  absl::StatusOr<CurrentView> Read(const BlockRange& behavior, size_t first,
                                   uint32_t first_position) const;

 private:
  absl::Status ParseGathered(const v1::Gathered& gathered, size_t count, uint32_t top_k);
  // Returns the index of the position's first value. The position must be in the request.
  size_t Begin(size_t position) const;

  std::span<const float> sampled_log_probs_;
  // GATHERED: the number of values of each position; the number of values before each multiple of
  // kPositionsPerBegin; and the values.
  static constexpr size_t kPositionsPerBegin = 64;
  std::span<const uint8_t> counts_;
  std::vector<uint64_t> begins_;
  std::span<const float> log_probs_;
  // REDUCED; empty if GATHERED.
  std::span<const float> log_envelopes_;
  std::span<const float> covered_masses_;
};

}  // namespace sis
