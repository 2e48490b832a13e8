#include "client/compare/inspected_sequence.h"

#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {

absl::Status CheckArrays(const v1::InspectSequenceResponse& sequence) {
  struct Array {
    absl::string_view name;
    const std::string& bytes;
    size_t bytes_per_position;
  };
  const size_t slots = sequence.top_k();
  for (const Array& array : std::initializer_list<Array>{
           {"missing_reasons", sequence.missing_reasons(), 1},
           {"sampled_ids", sequence.sampled_ids(), sizeof(int32_t)},
           {"sampled_log_probs", sequence.sampled_log_probs(), sizeof(float)},
           {"log_ratios", sequence.log_ratios(), sizeof(float)},
           {"acceptance_probabilities", sequence.acceptance_probabilities(), sizeof(float)},
           {"log_envelopes", sequence.log_envelopes(), sizeof(float)},
           {"residual_masses", sequence.residual_masses(), sizeof(float)},
           {"uniforms", sequence.uniforms(), sizeof(uint32_t)},
           {"staleness", sequence.staleness(), sizeof(int64_t)},
           {"top_k_ids", sequence.top_k_ids(), slots * sizeof(int32_t)},
           {"top_k_log_probs", sequence.top_k_log_probs(), slots * sizeof(float)},
           {"current_log_probs", sequence.current_log_probs(), slots * sizeof(float)}}) {
    const size_t expected = sequence.decisions().size() * array.bytes_per_position;
    if (array.bytes.size() == expected) continue;
    return absl::InternalError(absl::StrCat("the server's ", array.name, " holds ",
                                            array.bytes.size(), " bytes, not ", expected));
  }
  return absl::OkStatus();
}

std::string NameOf(const v1::SequenceRef& sequence) {
  if (sequence.attempt() == 0) return sequence.id();
  return absl::StrCat(sequence.id(), " attempt ", sequence.attempt());
}

}  // namespace sis
