// Between a sequence in memory and the entries of its stored log. Records travel as pages
// (docs/page_format.md), so what is stored is rounded as it is in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/records/validate.h"
#include "server/cache/page.h"
#include "server/cache/sequence.h"
#include "server/store/stored_sequence.h"

namespace sis {

// Valid records as entries of at most kMaxRowBytes.
std::vector<LogEntry> BlockEntries(const RecordFormat& format, uint32_t first_position,
                                   uint64_t policy_version, const RecordView& records,
                                   std::span<const uint16_t> ranks);

LogEntry GapEntry(const Missing& gap);

// Does to the sequence what the entry says. Errors as those of Append, AppendGap and Seal; DataLoss
// if it is no entry of such a sequence. bytes_short, if it is ResourceExhausted, is what is
// lacking.
absl::Status Replay(const LogEntry& entry, Sequence& sequence, int64_t& bytes_short);

// A whole form: entries that make the sequence again. DataLoss if a page is corrupt.
absl::StatusOr<std::string> WholeForm(const Sequence& sequence);
absl::StatusOr<std::vector<LogEntry>> ParseWholeForm(std::string_view form);

}  // namespace sis
