#include "server/cache/column.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

constexpr size_t kMaxNameBytes = 64;

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

}  // namespace

absl::Status CheckColumns(const std::vector<Column>& columns, uint32_t slots) {
  if (columns.size() > kMaxColumns) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.columns: ", columns.size(), ", more than ", kMaxColumns));
  }
  uint64_t width = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    const Column& column = columns[i];
    const std::string field = absl::StrCat("config.columns[", i, "]");
    if (!IsName(column.name)) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".name of ", column.name.size(),
                                                     " bytes is not 1 to ", kMaxNameBytes,
                                                     " bytes of [A-Za-z0-9._-]"));
    }
    const auto is_same = [&](const Column& other) { return other.name == column.name; };
    if (std::any_of(columns.begin(), columns.begin() + static_cast<ptrdiff_t>(i), is_same)) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".name '", column.name, "' is another column's, too"));
    }
    if (column.bytes < 1 || column.bytes > kMaxColumnBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".bytes ", column.bytes, " is not in [1, ", kMaxColumnBytes, "]"));
    }
    width += column.width(slots);
  }
  if (width <= kMaxColumnsWidth) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("config.columns: ", width, " bytes a position, more than ", kMaxColumnsWidth));
}

absl::StatusOr<uint32_t> FindColumn(const std::vector<Column>& columns, std::string_view name,
                                    std::string_view field) {
  const auto found = std::ranges::find(columns, name, &Column::name);
  if (found != columns.end()) return static_cast<uint32_t>(found - columns.begin());
  const std::string shown = name.size() <= kMaxNameBytes
                                ? absl::StrCat("'", std::string(name), "'")
                                : absl::StrCat("of ", name.size(), " bytes");
  return absl::NotFoundError(absl::StrCat(std::string(field), ": the run has no column ", shown));
}

std::string ToString(const std::vector<Column>& columns) {
  std::string text = "[";
  for (const Column& column : columns) {
    absl::StrAppend(&text, text.size() > 1 ? ", " : "", column.name, "[", column.bytes, "]",
                    column.per_slot ? " * K" : "");
  }
  return text + "]";
}

}  // namespace sis
