// Which arrays of the records a FetchTopK wants.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class WantedRecords {
 public:
  // InvalidArgument if one is none of RecordArray's. None are all.
  static absl::StatusOr<WantedRecords> Parse(const v1::FetchTopKRequest& request);

  bool Has(v1::RecordArray array) const { return (bits_ >> array & 1) != 0; }
  // Of all of them, for one position that uses all slots.
  size_t RowBytes(size_t slots) const;
  bool has_slots() const { return Has(v1::TOP_K_IDS) || Has(v1::TOP_K_LOG_PROBS); }

 private:
  uint32_t bits_ = 0;
};

}  // namespace sis
