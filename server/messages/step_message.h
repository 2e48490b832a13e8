// Converts counts of a step to messages.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <string>

#include "kernels/decide/statistics.h"
#include "kernels/numerics/sums.h"
#include "server/cache/step_ledger.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

v1::Totals ToTotals(const Sums& sums);
v1::CorrectionTotals ToMessage(const std::string& correction, const CorrectionSums& sums);
// Adds the corrections "plain", "clipped" and "applied".
void AddStandardCorrections(const Statistics& statistics,
                            google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& corrections);
// Adds one point per k, in ascending order.
void AddPrefixCurve(const Evaluated& evaluated,
                    google::protobuf::RepeatedPtrField<v1::PrefixPoint>& curve);
v1::GetStepResponse ToMessage(const StepLedger::Step& step);

}  // namespace sis
