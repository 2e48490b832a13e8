#include "server/fetch/wanted_records.h"

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<WantedRecords> WantedRecords::Parse(const v1::FetchTopKRequest& request) {
  WantedRecords wanted;
  for (int i = 0; i < request.arrays_size(); ++i) {
    switch (request.arrays(i)) {
      case v1::SAMPLED_IDS:
        wanted.sampled_ids = true;
        break;
      case v1::SAMPLED_LOG_PROBS:
        wanted.sampled_log_probs = true;
        break;
      case v1::TOP_K_IDS:
        wanted.ids = true;
        break;
      case v1::TOP_K_LOG_PROBS:
        wanted.log_probs = true;
        break;
      default:
        return absl::InvalidArgumentError(absl::StrCat(
            "arrays[", i, "]: ", static_cast<int>(request.arrays(i)), " is no array of a record"));
    }
  }
  if (request.arrays().empty()) {
    wanted = {.sampled_ids = true, .sampled_log_probs = true, .ids = true, .log_probs = true};
  }
  return wanted;
}

size_t WantedRecords::RowBytes(size_t slots) const {
  return sampled_ids * sizeof(int32_t) + sampled_log_probs * sizeof(float) +
         slots * (ids * sizeof(int32_t) + log_probs * sizeof(float));
}

}  // namespace sis
