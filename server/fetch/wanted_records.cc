#include "server/fetch/wanted_records.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<WantedRecords> WantedRecords::Parse(const v1::FetchTopKRequest& request) {
  WantedRecords wanted;
  for (int i = 0; i < request.arrays_size(); ++i) {
    const v1::RecordArray array = request.arrays(i);
    if (!v1::RecordArray_IsValid(array) || array == v1::RECORD_ARRAY_UNSPECIFIED) {
      return absl::InvalidArgumentError(
          absl::StrCat("arrays[", i, "]: ", static_cast<int>(array), " is no array of a record"));
    }
    wanted.bits_ |= 1u << array;
  }
  if (request.arrays().empty()) wanted.bits_ = ~0u;
  return wanted;
}

size_t WantedRecords::RowBytes(size_t slots) const {
  static_assert(sizeof(int32_t) == sizeof(float));
  const size_t values = Has(v1::SAMPLED_IDS) + Has(v1::SAMPLED_LOG_PROBS) +
                        (Has(v1::TOP_K_IDS) + Has(v1::TOP_K_LOG_PROBS)) * slots;
  return values * sizeof(float);
}

}  // namespace sis
