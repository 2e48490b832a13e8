// Pages of version 2: positions hold as many slots as their sets have (docs/page_format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/record_view.h"

namespace sis {

// Writes all sections. The header must be what HeaderOf makes of the records; the rest is as for
// EncodePage.
void EncodeRaggedSections(const PageHeader& header, const RecordView& records,
                          std::span<const uint8_t> ranks, std::span<std::byte> page,
                          std::span<float> rounded_log_probs);

// DataLoss unless counts and ranks agree with the header: nothing else tells where a slot is.
absl::Status CheckRaggedCounts(const PageView& page);

void ReadRaggedRecords(const PageView& page, uint32_t first, const RecordRows& rows);

}  // namespace sis
