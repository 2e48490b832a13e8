// Which arrays of the records a FetchTopK wants.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class WantedRecords {
 public:
  static constexpr int kArrays = 4;

  // InvalidArgument if one is none of RecordArray's. None are all.
  static absl::StatusOr<WantedRecords> Parse(const v1::FetchTopKRequest& request);

  bool Has(v1::RecordArray array) const { return (bits_ >> array & 1) != 0; }
  // Bytes of each array, in the order of RecordArray, for so many rows of so many slots in all; if
  // they are ragged, the counts are the third.
  std::vector<uint64_t> Sizes(uint64_t rows, uint64_t slots, bool ragged) const;
  bool has_slots() const { return Has(v1::TOP_K_IDS) || Has(v1::TOP_K_LOG_PROBS); }

 private:
  uint32_t bits_ = 0;
};

}  // namespace sis
