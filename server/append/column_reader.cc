#include "server/append/column_reader.h"

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"

namespace sis {

absl::StatusOr<ColumnValues> ColumnReader::ReadField(std::string_view name, const ArrayField& field,
                                                     uint32_t column, uint32_t positions,
                                                     const SharedSegment* segment, const Run& run) {
  const absl::StatusOr<ArrayField> array = LocateArray(std::string(name), field, segment);
  if (!array.ok()) return array.status();
  const RunConfig& config = run.config();
  const uint32_t width = config.columns[column].width(config.top_k);
  const size_t bytes = size_t{positions} * width;
  if (array->size() != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": ", array->size(), " bytes, not the ", bytes, " of ",
                     positions, " positions of column '", config.columns[column].name, "'"));
  }
  if (copies_.size() <= column) copies_.resize(column + 1);
  return ColumnValues{column, width, array->Read<std::byte>(0, bytes, copies_[column])};
}

absl::StatusOr<std::span<const ColumnValues>> ColumnReader::ReadBlock(const AppendEntryView& block,
                                                                      uint32_t positions,
                                                                      const SharedSegment* segment,
                                                                      const Run& run) {
  static_assert(AppendEntryView::kMostColumns > kMaxColumns);
  values_.clear();
  if (block.columns.size() > run.config().columns.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "columns: more than the ", run.config().columns.size(), " of run '", run.id(), "'"));
  }
  for (uint32_t i = 0; i < block.columns.size(); ++i) {
    if (block.columns[i].size() == 0) continue;
    absl::StatusOr<ColumnValues> values =
        ReadField(absl::StrCat("columns[", i, "]"), block.columns[i], i, positions, segment, run);
    if (!values.ok()) return values.status();
    values_.push_back(*values);
  }
  return std::span<const ColumnValues>(values_);
}

absl::StatusOr<ColumnValues> ColumnReader::Read(const AppendEntryView& entry,
                                                const SharedSegment* segment, const Run& run) {
  const absl::StatusOr<uint32_t> column = FindColumn(run.config().columns, entry.column, "column");
  if (!column.ok()) return column.status();
  if (entry.length == 0) return absl::InvalidArgumentError("length: 0");
  const int64_t max_positions = run.limits().max_positions;
  if (uint64_t{entry.first_position} + entry.length > static_cast<uint64_t>(max_positions)) {
    return absl::InvalidArgumentError(absl::StrCat("first_position ", entry.first_position, " + ",
                                                   entry.length, " positions is beyond ",
                                                   max_positions));
  }
  absl::StatusOr<ColumnValues> values =
      ReadField("values", entry.columns[0], *column, entry.length, segment, run);
  if (!values.ok() || !entry.crc32c.has_value()) return values;
  if (const uint32_t crc = ExtendCrc32c(0, values->values); crc != *entry.crc32c) {
    return absl::InvalidArgumentError(
        absl::StrCat("crc32c: ", *entry.crc32c, ", but the values have ", crc));
  }
  return values;
}

}  // namespace sis
