// What the parts of a batch count, together.
#pragma once

#include <span>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The sum, to the last bit what one server computes: all addends are whole multiples of 2^-30.
v1::Totals SumTotals(std::span<const v1::Totals> parts);

// The same of prefix curves, by their k: adds that of one replica, or of one request.
void AddPrefixCurve(const google::protobuf::RepeatedPtrField<v1::PrefixPoint>& part,
                    google::protobuf::RepeatedPtrField<v1::PrefixPoint>& merged);

// Adds what corrections come to on one replica, or in one request, by their names.
void AddCorrections(const google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& part,
                    google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& merged);
// The same of one replica's step, all but the totals.
void AddStep(const v1::GetStepResponse& part, v1::GetStepResponse& merged);
// Adds what another replica counted of the same draws; their number, and which they are, stay.
void AddStretch(const v1::GetHistoryResponse::Stretch& part,
                v1::GetHistoryResponse::Stretch& merged);

}  // namespace sis
