// The current policy's values in a request, in whichever form, and wherever they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decide/backend.h"
#include "server/cache/run_config.h"
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
    std::vector<float> rows;  // what was ragged, in rows
  };

  // InvalidArgument names the field.
  static absl::StatusOr<CurrentArrays> Parse(const v1::EvaluateRequest& request,
                                             const ReceivedArrays& arrays, size_t count,
                                             const RunConfig& config);

  // How much there is to read of a position.
  size_t values_per_position() const;

  // The positions [first, first + count) of the request.
  CurrentView Read(size_t first, size_t count, Scratch& scratch) const;
  // The positions [first, first + count) of the request, of a view that was read from `read_first`
  // on.
  CurrentView Part(const CurrentView& view, size_t read_first, size_t first, size_t count) const;
  // If the form is ragged, how many slots each of these positions has; else empty.
  bool ragged() const { return !counts_.empty(); }
  std::span<const uint16_t> Counts(size_t first, size_t count) const {
    return ragged() ? std::span(counts_).subspan(first, count) : std::span<const uint16_t>();
  }
  // Only the sampled tokens' log-probs of them.
  std::span<const float> ReadSampled(size_t first, size_t count, Scratch& scratch) const;

 private:
  absl::Status ParseGathered(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                             size_t count);
  absl::Status ParseCounts(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                           size_t count);
  // Of a ragged form.
  void ReadRagged(size_t first, size_t count, Scratch& scratch, CurrentView& view) const;
  // How many values the positions before have. The position must be there.
  size_t RaggedBegin(size_t position) const;

  size_t slots_ = 0;
  ArrayField sampled_log_probs_;
  ArrayField log_probs_;
  // If it is ragged, how many values each position has; and how many come before every so many
  // positions, and in all.
  static constexpr size_t kPositionsPerBegin = 64;
  std::vector<uint16_t> counts_;
  std::vector<uint64_t> begins_;
  uint64_t all_values_ = 0;
  ArrayField log_envelopes_;
  ArrayField covered_masses_;
};

}  // namespace sis
