// Which arrays of the records a FetchTopK wants.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/page/page.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

struct WantedRecords {
  // InvalidArgument if one is none of RecordArray's. None are all.
  static absl::StatusOr<WantedRecords> Parse(const v1::FetchTopKRequest& request);

  // Of one row of K = slots.
  size_t RowBytes(size_t slots) const;

  bool sampled_ids = false;
  bool sampled_log_probs = false;
  bool ids = false;
  bool log_probs = false;
};

}  // namespace sis
