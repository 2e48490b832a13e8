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

  // How much there is to read of a position.
  size_t values_per_position() const;

  // The positions [first, first + count) of the request.
  CurrentView Read(size_t first, size_t count) const;
  // The positions [first, first + count) of the request, of a view that was read from `read_first`
  // on.
  CurrentView Part(const CurrentView& view, size_t read_first, size_t first, size_t count) const;
  // If the form is ragged, how many slots each of these positions has; else empty.
  bool ragged() const { return !counts_.empty(); }
  std::span<const uint16_t> Counts(size_t first, size_t count) const {
    return ragged() ? counts_.subspan(first, count) : std::span<const uint16_t>();
  }
  // The sampled tokens' log-probs of all positions.
  std::span<const float> sampled_log_probs() const { return sampled_log_probs_; }

 private:
  absl::Status ParseGathered(const v1::Gathered& gathered, size_t count);
  absl::Status ParseCounts(const v1::Gathered& gathered, size_t count);
  // How many values the positions before have. The position must be there.
  size_t RaggedBegin(size_t position) const;

  size_t slots_ = 0;
  std::span<const float> sampled_log_probs_;
  std::span<const float> log_probs_;
  // If it is ragged, how many values each position has; and how many come before every so many
  // positions, and in all.
  static constexpr size_t kPositionsPerBegin = 64;
  std::span<const uint16_t> counts_;
  std::vector<uint64_t> begins_;
  uint64_t all_values_ = 0;
  std::span<const float> log_envelopes_;
  std::span<const float> covered_masses_;
};

}  // namespace sis
