// What replicas, or the parts of a batch, count together.
#pragma once

#include <span>

#include "google/protobuf/message.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The sum, to the last bit what one server computes: all addends are whole multiples of 2^-30.
v1::Totals SumTotals(std::span<const v1::Totals> parts);

// Adds the counts and sums of a message: its fields of type uint64 and double. Sums are exact up to
// 2^23, as their addends are multiples of 2^-30.
void AddNumbers(const google::protobuf::Message& part, google::protobuf::Message& sum);

// The same of the elements of a part, each to that of the same k, correction or reason.
void AddPrefixCurve(const google::protobuf::RepeatedPtrField<v1::PrefixPoint>& part,
                    google::protobuf::RepeatedPtrField<v1::PrefixPoint>& merged);
void AddCorrections(const google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& part,
                    google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& merged);
void AddMissing(const google::protobuf::RepeatedPtrField<v1::MissingTotals>& part,
                google::protobuf::RepeatedPtrField<v1::MissingTotals>& merged);

}  // namespace sis
