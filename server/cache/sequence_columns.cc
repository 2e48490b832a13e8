#include "server/cache/sequence_columns.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"
#include "server/cache/page.h"

namespace sis {
namespace {

constexpr uint32_t kPositions = Page::kPositions;

// Calls visit(column, part) for each of several columns.
template <typename Visit>
void ForEachColumnPart(uint32_t first_position, std::span<const ColumnValues> values,
                       const Visit& visit) {
  for (const ColumnValues& column : values) {
    ForEachPart(first_position, first_position + column.positions(),
                [&](const PagePart& part) { visit(column, part); });
  }
}

size_t BlockBytes(uint32_t width) { return size_t{kPositions} * width; }
// A large cell's share of its slab is larger than itself: one of more than half has all of it.
int64_t Charge(uint32_t width) {
  const size_t cells = Arena::kSlabBytes / Arena::CellBytes(BlockBytes(width));
  return static_cast<int64_t>(Arena::kSlabBytes / cells) + SequenceColumns::kIndexBytes;
}
// Where it is among the run's; errors begin with it.
std::string FieldOf(uint32_t column) { return absl::StrCat("columns[", column, "]"); }

std::span<const std::byte> Row(const ColumnValues& values, size_t row) {
  return values.values.subspan(row * values.width, values.width);
}

// A page's checksum is the sum over its values, so that adding one doesn't read the others.
uint64_t ChecksumOf(uint32_t index, std::span<const std::byte> value) {
  return ExtendCrc32c(index, value);
}

}  // namespace

bool SequenceColumns::Page::damaged() const {
  uint64_t sum = 0;
  for (uint64_t left = present; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(left));
    sum += ChecksumOf(index, Value(index));
  }
  return sum != checksum;
}

void SequenceColumns::Page::Drop(uint64_t positions) {
  for (uint64_t left = present & positions; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(std::countr_zero(left));
    checksum -= ChecksumOf(index, Value(index));
  }
  present &= ~positions;
}

SequenceColumns::~SequenceColumns() {
  for (const auto& [key, page] : pages_) budget_.Refund(Charge(page.width));
}

void SequenceColumns::Erase(Pages::iterator& page) {
  budget_.Refund(Charge(page->second.width));
  page = pages_.erase(page);
}

int64_t SequenceColumns::BytesToAdd(const SequenceColumns* present, uint32_t first_position,
                                    std::span<const ColumnValues> values) {
  int64_t bytes = 0;
  ForEachColumnPart(first_position, values, [&](const ColumnValues& column, const PagePart& part) {
    if (present != nullptr && present->pages_.contains({column.column, part.number})) return;
    bytes += Charge(column.width);
  });
  return bytes;
}

absl::Status SequenceColumns::CheckFits(uint32_t first_position,
                                        std::span<const ColumnValues> values) const {
  absl::Status status;
  ForEachColumnPart(first_position, values, [&](const ColumnValues& column, const PagePart& part) {
    const auto found = pages_.find({column.column, part.number});
    if (!status.ok() || found == pages_.end()) return;
    const Page& page = found->second;
    const uint64_t again = page.present & sis::Page::Mask(part.index, part.count);
    if (page.width != column.width || (again != 0 && page.damaged())) {
      status = absl::DataLossError(absl::StrCat(FieldOf(column.column), ": from position ",
                                                part.number * kPositions, " on it is corrupt"));
      return;
    }
    for (uint32_t i = 0; i < part.count; ++i) {
      const uint32_t index = part.index + i;
      if ((again >> index & 1) == 0 ||
          std::ranges::equal(page.Value(index), Row(column, part.row + i))) {
        continue;
      }
      status = absl::AlreadyExistsError(absl::StrCat(FieldOf(column.column), ": position ",
                                                     part.number * kPositions + index,
                                                     " has another value"));
      return;
    }
  });
  return status;
}

absl::Status SequenceColumns::Reserve(uint32_t first_position,
                                      std::span<const ColumnValues> values) {
  absl::Status status;
  ForEachColumnPart(first_position, values, [&](const ColumnValues& column, const PagePart& part) {
    const Key key(column.column, part.number);
    if (!status.ok() || pages_.contains(key)) return;
    const int64_t charge = Charge(column.width);
    if (!budget_.TryCharge(charge)) {
      status = absl::ResourceExhaustedError(absl::StrCat(charge, " bytes are not to be had"));
      return;
    }
    Arena::Allocation block = arena_.Allocate(BlockBytes(column.width));
    if (block.empty()) {
      budget_.Refund(charge);
      status = absl::ResourceExhaustedError(
          absl::StrCat(charge, " bytes are not to be had in one piece"));
      return;
    }
    Page& page = pages_[key];
    page.block = std::move(block);
    page.width = column.width;
  });
  if (!status.ok()) GiveBack(first_position, values);
  return status;
}

void SequenceColumns::GiveBack(uint32_t first_position, std::span<const ColumnValues> values) {
  ForEachColumnPart(first_position, values, [&](const ColumnValues& column, const PagePart& part) {
    auto found = pages_.find({column.column, part.number});
    if (found != pages_.end() && found->second.present == 0) Erase(found);
  });
}

int64_t SequenceColumns::Add(uint32_t first_position, std::span<const ColumnValues> values) {
  int64_t added = 0;
  ForEachColumnPart(first_position, values, [&](const ColumnValues& column, const PagePart& part) {
    Page& page = pages_.at({column.column, part.number});
    for (uint32_t i = 0; i < part.count; ++i) {
      const uint32_t index = part.index + i;
      if ((page.present >> index & 1) != 0) continue;
      const std::span<const std::byte> value = Row(column, part.row + i);
      std::memcpy(page.Value(index).data(), value.data(), value.size());
      page.checksum += ChecksumOf(index, value);
      page.present |= uint64_t{1} << index;
      ++added;
    }
  });
  return added;
}

void SequenceColumns::Truncate(uint32_t length) {
  for (auto page = pages_.begin(); page != pages_.end();) {
    const uint32_t number = page->first.second;
    const uint32_t kept = number == length / kPositions ? length % kPositions : 0;
    if (number >= length / kPositions) page->second.Drop(sis::Page::Mask(kept, kPositions - kept));
    if (page->second.present == 0) {
      Erase(page);
    } else {
      ++page;
    }
  }
}

void SequenceColumns::Read(uint32_t column, uint32_t first_position, std::span<std::byte> values,
                           std::span<uint8_t> present) const {
  const size_t width = values.size() / present.size();
  std::ranges::fill(values, std::byte{0});
  std::ranges::fill(present, uint8_t{0});
  const uint32_t end = first_position + static_cast<uint32_t>(present.size());
  ForEachPart(first_position, end, [&](const PagePart& part) {
    const auto found = pages_.find({column, part.number});
    if (found == pages_.end()) return;
    const Page& page = found->second;
    if (page.width != width || page.damaged()) return;
    for (uint32_t i = 0; i < part.count; ++i) {
      if ((page.present >> (part.index + i) & 1) == 0) continue;
      present[part.row + i] = 1;
      std::ranges::copy(page.Value(part.index + i), &values[(part.row + i) * width]);
    }
  });
}

bool SequenceColumns::Has(uint32_t column, uint32_t first_position, uint32_t count) const {
  bool all = true;
  ForEachPart(first_position, first_position + count, [&](const PagePart& part) {
    const auto found = pages_.find({column, part.number});
    const uint64_t wanted = sis::Page::Mask(part.index, part.count);
    all = all && found != pages_.end() && (found->second.present & wanted) == wanted;
  });
  return all;
}

absl::Status SequenceColumns::ForEach(
    const std::function<void(uint32_t, const ColumnValues&)>& visit) const {
  for (const auto& [key, page] : pages_) {
    const auto& [column, number] = key;
    if (page.damaged()) {
      return absl::DataLossError(absl::StrCat(FieldOf(column), ": from position ",
                                              number * kPositions, " on it is corrupt"));
    }
    for (uint32_t index = 0; index < kPositions;) {
      const uint64_t left = page.present >> index;
      if (left == 0) break;
      index += static_cast<uint32_t>(std::countr_zero(left));
      const auto count = static_cast<uint32_t>(
          std::min<int>(std::countr_one(page.present >> index), kPositions - index));
      visit(number * kPositions + index,
            {column, page.width,
             page.block.bytes().subspan(size_t{index} * page.width, size_t{count} * page.width)});
      index += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace sis
