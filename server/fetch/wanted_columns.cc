#include "server/fetch/wanted_columns.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "server/wire/arrays.h"

namespace sis {
namespace {

std::span<std::byte> Bytes(std::string& array) {
  return std::as_writable_bytes(std::span(array.data(), array.size()));
}

}  // namespace

absl::StatusOr<WantedColumns> WantedColumns::Parse(const v1::FetchTopKRequest& request,
                                                   const RunConfig& config) {
  WantedColumns wanted;
  for (int i = 0; i < request.columns_size(); ++i) {
    const std::string field = absl::StrCat("columns[", i, "]");
    const absl::StatusOr<uint32_t> column = FindColumn(config.columns, request.columns(i), field);
    if (!column.ok()) return column.status();
    if (std::ranges::find(wanted.columns_, *column, &Wanted::column) != wanted.columns_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": '", request.columns(i), "' is wanted twice"));
    }
    wanted.columns_.push_back({*column, config.columns[*column].width(config.top_k)});
  }
  return wanted;
}

std::vector<uint32_t> WantedColumns::numbers() const {
  std::vector<uint32_t> numbers;
  for (const Wanted& wanted : columns_) numbers.push_back(wanted.column);
  return numbers;
}

size_t WantedColumns::RowBytes() const {
  size_t bytes = 0;
  for (const Wanted& wanted : columns_) bytes += wanted.width + sizeof(uint8_t);
  return bytes;
}

void WantedColumns::AddSizes(uint64_t rows, std::vector<uint64_t>& sizes) const {
  for (const Wanted& wanted : columns_) sizes.push_back(rows * wanted.width);
  sizes.insert(sizes.end(), columns_.size(), rows);
}

void WantedColumns::Resize(uint32_t rows) {
  for (Wanted& wanted : columns_) {
    ResizeArray<char>(wanted.values, size_t{rows} * wanted.width);
    ResizeArray<char>(wanted.present, rows);
  }
}

void WantedColumns::Read(const Sequence::Reader& reader, const Sequence::Reader::Piece& piece,
                         uint32_t row) {
  for (Wanted& wanted : columns_) {
    const std::span<std::byte> values = Bytes(wanted.values);
    const std::span<uint8_t> present(reinterpret_cast<uint8_t*>(wanted.present.data()),
                                     wanted.present.size());
    reader.ReadColumn(
        wanted.column, piece.first_position,
        values.subspan(size_t{row} * wanted.width, size_t{piece.count} * wanted.width),
        present.subspan(row, piece.count));
  }
}

void WantedColumns::Move(v1::FetchTopKChunk& chunk) {
  for (Wanted& wanted : columns_) {
    chunk.add_columns(std::move(wanted.values));
    chunk.add_column_presence(std::move(wanted.present));
  }
}

void WantedColumns::Write(const AnswersInSegment& answers, size_t array, uint64_t first_row) const {
  for (size_t i = 0; i < columns_.size(); ++i) {
    const Wanted& wanted = columns_[i];
    answers.Write(array + i, first_row * wanted.width, std::as_bytes(std::span(wanted.values)));
    answers.Write(array + columns_.size() + i, first_row, std::as_bytes(std::span(wanted.present)));
  }
}

void WantedColumns::Locate(const AnswersInSegment& answers, size_t array,
                           v1::FetchTopKChunk& chunk) const {
  for (size_t i = 0; i < columns_.size(); ++i) {
    chunk.add_columns(answers.part(array + i).ToBytes());
    chunk.add_column_presence(answers.part(array + columns_.size() + i).ToBytes());
  }
}

}  // namespace sis
