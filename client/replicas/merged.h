// What several replicas answer, as one server would that holds everything. `parts` are at least
// one.
#pragma once

#include <vector>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Adds another replica's part of a run. One in an older incarnation holds nothing of it.
void AddRun(const v1::Run& part, v1::Run& run);

v1::ListRunsResponse Merged(const std::vector<v1::ListRunsResponse>& parts);
v1::GetStepResponse Merged(const std::vector<v1::GetStepResponse>& parts);
// In the order of the replica that evaluated a draw last, as far as that can be told.
v1::ListStepsResponse Merged(const std::vector<v1::ListStepsResponse>& parts);
// All that they counted, in the stretches of the replica that has most: each thins its history by
// the draws that it has seen, so the bounds differ where one of them missed a draw. A stretch of
// another is added where its last draw lies. If that is nowhere, it stands before the one that
// ended next.
v1::GetHistoryResponse Merged(const std::vector<v1::GetHistoryResponse>& parts);
// A page, as long as a server's.
v1::ListSequencesResponse Merged(const std::vector<v1::ListSequencesResponse>& parts);
// Of a sequence that several have evaluated, the last time.
v1::InspectRunResponse Merged(const std::vector<v1::InspectRunResponse>& parts);

}  // namespace sis
