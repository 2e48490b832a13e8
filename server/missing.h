// Why a position has no record.
#pragma once

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// A range of consecutive missing positions of one slice, in the words of the API.
struct Missing {
  uint32_t first_position;
  uint32_t count;
  v1::MissingReason reason;
};

}  // namespace sis
