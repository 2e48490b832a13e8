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

std::vector<uint64_t> WantedRecords::Sizes(uint64_t rows, uint64_t slots, bool ragged) const {
  static_assert(sizeof(int32_t) == sizeof(float));
  const uint64_t narrow = rows * sizeof(float);
  const uint64_t wide = slots * sizeof(float);
  std::vector<uint64_t> sizes = {Has(v1::SAMPLED_IDS) * narrow, Has(v1::SAMPLED_LOG_PROBS) * narrow,
                                 Has(v1::TOP_K_IDS) * wide, Has(v1::TOP_K_LOG_PROBS) * wide};
  if (ragged) sizes.insert(sizes.begin() + 2, rows * sizeof(uint16_t));
  return sizes;
}

}  // namespace sis
