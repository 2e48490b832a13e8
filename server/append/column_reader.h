// The values of columns that an entry brings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cache/column.h"
#include "server/cache/run.h"
#include "server/shared_memory/shared_segment.h"
#include "server/wire/append_request.h"

namespace sis {

// Used by one thread at a time. What is read lies in the message, or in here until the next call.
class ColumnReader {
 public:
  // Those that a block of so many positions has. InvalidArgument names the field if there are more
  // than the run has, or one is of another length. The values lie in `segment`, or in the message
  // if it is null.
  absl::StatusOr<std::span<const ColumnValues>> ReadBlock(const AppendEntryView& block,
                                                          uint32_t positions,
                                                          const SharedSegment* segment,
                                                          const Run& run);
  // Of an entry of the kind kColumn. NotFound if the run has no such column, InvalidArgument names
  // the field if there is no position, one beyond the most of a sequence, or the values are of
  // another length or checksum.
  absl::StatusOr<ColumnValues> Read(const AppendEntryView& entry, const SharedSegment* segment,
                                    const Run& run);

  // Gives back the memory of copies, which a stream that waits would keep.
  void Forget() { std::vector<std::vector<std::byte>>().swap(copies_); }

 private:
  absl::StatusOr<ColumnValues> ReadField(std::string_view name, const ArrayField& field,
                                         uint32_t column, uint32_t positions,
                                         const SharedSegment* segment, const Run& run);

  std::vector<ColumnValues> values_;
  std::vector<std::vector<std::byte>> copies_;  // by column
};

}  // namespace sis
