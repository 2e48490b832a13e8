// Pages of version 2: positions hold as many slots as their sets have (docs/page_format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/record_view.h"

namespace sis {

// Where the sections begin, in bytes; each ends where the next begins.
struct RaggedLayout {
  size_t sampled_log_probs;
  size_t counts;
  size_t ranks;
  size_t multipliers;
  size_t log_probs;
  size_t outside_ids;
  size_t ids;
  size_t end;
};

RaggedLayout LayOutRaggedPage(const PageHeader& header);

PageView ViewRaggedPage(const PageHeader& header, std::span<const std::byte> page);

// Writes all sections. The header must be what HeaderOf makes of the records; the rest is as for
// EncodePage.
void EncodeRaggedSections(const PageHeader& header, const RecordView& records,
                          std::span<const uint8_t> ranks, std::span<std::byte> page,
                          std::span<float> rounded_log_probs);

// DataLoss unless counts and ranks agree with the header: nothing else tells where a slot is.
absl::Status CheckRaggedCounts(const PageView& page);

void ReadRaggedRecords(const PageView& page, uint32_t first, const RecordRows& rows);

// Of kFixed12; else 1.
uint32_t RaggedMultiplier(const PageView& page, size_t position);

}  // namespace sis
