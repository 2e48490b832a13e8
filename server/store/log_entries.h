// Between a sequence in memory and the entries of its stored log. A block is stored as it is in
// memory (docs/record_block.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/block/block.h"
#include "server/cache/run_config.h"
#include "server/cache/sequence.h"
#include "server/store/stored_sequence.h"

namespace sis {

LogEntry BlockEntry(const BlockView& block);
LogEntry GapEntry(const Missing& gap);

// Does to a sequence of a run what the entry says. Errors as those of Append, AppendGap and Seal;
// DataLoss if it is no entry of such a sequence. bytes_short, if it is ResourceExhausted, is what
// is lacking.
absl::Status Replay(const LogEntry& entry, const RunConfig& config, Sequence& sequence,
                    int64_t& bytes_short);

// A whole form: entries that make the sequence again. DataLoss if a block is corrupt.
absl::StatusOr<std::string> WholeForm(const Sequence& sequence);
absl::StatusOr<std::vector<LogEntry>> ParseWholeForm(std::string_view form);

}  // namespace sis
