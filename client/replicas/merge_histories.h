// GetHistory over several replicas.
#pragma once

#include <vector>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// All that they counted, in the stretches of the replica that has most: each thins its history by
// the draws that it has seen, so the bounds differ where one of them missed a draw. A stretch of
// another is added where its last draw lies. If that is nowhere, it stands before the one that
// ended next.
v1::GetHistoryResponse MergeHistories(std::vector<v1::GetHistoryResponse> parts);

}  // namespace sis
