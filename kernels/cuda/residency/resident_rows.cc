#include "kernels/cuda/residency/resident_rows.h"

#include <algorithm>

namespace sis::cuda {

ResidentRows::ResidentRows(ResidentMemory& memory, size_t slab_bytes)
    : memory_(memory), slab_bytes_(slab_bytes), slabs_(memory.size() / slab_bytes) {
  for (size_t i = slabs_.size(); i > 0; --i) unused_.push_back(static_cast<uint32_t>(i - 1));
  stats_.capacity_bytes = static_cast<int64_t>(slabs_.size() * slab_bytes);
}

ResidentRowsStats ResidentRows::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::optional<ResidentRows::Location> ResidentRows::FindLocation(const RowsTag& tag) const {
  const uint64_t note = tag.location();
  const Location location{static_cast<uint32_t>(note >> 32), static_cast<uint32_t>(note)};
  if (location.slab >= slabs_.size()) return std::nullopt;
  const std::vector<Cell>& cells = slabs_[location.slab].cells;
  if (location.cell >= cells.size() || cells[location.cell].name != tag.name()) return std::nullopt;
  return location;
}

std::optional<uint32_t> ResidentRows::TakeChunk(const RowsTag& tag) {
  if (!unused_.empty()) {
    const uint32_t slab = unused_.back();
    unused_.pop_back();
    slabs_[slab].by_age = by_age_.insert(by_age_.end(), slab);
    return slab;
  }
  const auto oldest =
      std::ranges::find_if(by_age_, [&](uint32_t slab) { return slabs_[slab].pins == 0; });
  if (oldest == by_age_.end()) return std::nullopt;
  Slab& slab = slabs_[*oldest];
  // Rows that were here before take no room from rows that were read since: else a step larger than
  // the memory, read over and over, would never find its rows there.
  if (tag.last_read() != 0 && tag.last_read() <= slab.last_read) return std::nullopt;
  const auto filling = filling_.find(slab.cell_bytes);
  if (filling != filling_.end() && filling->second == *oldest) filling_.erase(filling);
  stats_.evictions +=
      std::ranges::count_if(slab.cells, [](const Cell& cell) { return cell.name != 0; });
  stats_.used_bytes -= static_cast<int64_t>(slab.cells.size() * slab.cell_bytes);
  slab.cells.clear();
  memory_.Discard(*oldest * slab_bytes_, slab_bytes_);
  return *oldest;
}

std::optional<ResidentRows::Location> ResidentRows::MakeRoom(const FixedRows& rows) {
  const size_t cell_bytes = CellBytes(rows.bytes.size());
  if (cell_bytes > slab_bytes_) return std::nullopt;
  const size_t most_blocks = slab_bytes_ / cell_bytes;
  auto filling = filling_.find(cell_bytes);
  if (filling == filling_.end()) {
    const std::optional<uint32_t> taken = TakeChunk(*rows.tag);
    if (!taken.has_value()) return std::nullopt;
    filling = filling_.try_emplace(cell_bytes, *taken).first;
    slabs_[*taken].cell_bytes = cell_bytes;
    slabs_[*taken].cells.reserve(most_blocks);
  }
  const uint32_t number = filling->second;
  Slab& slab = slabs_[number];
  slab.cells.push_back({});
  stats_.used_bytes += static_cast<int64_t>(cell_bytes);
  if (slab.cells.size() == most_blocks) filling_.erase(filling);
  return Location{number, static_cast<uint32_t>(slab.cells.size() - 1)};
}

std::optional<size_t> ResidentRows::Use::Find(const FixedRows& rows, bool make) {
  const RowsTag* const tag = rows.tag;
  if (resident_ == nullptr || tag == nullptr || tag->name() == 0) {
    passed_ = 0;
    return std::nullopt;
  }
  const std::lock_guard lock(resident_->mutex_);
  if (batch_ == 0) batch_ = ++resident_->batches_;
  ResidentRowsStats& stats = resident_->stats_;
  bool made = false;
  std::optional<Location> location = resident_->FindLocation(*tag);
  if (location.has_value()) {
    const Cell& cell = resident_->slabs_[location->slab].cells[location->cell];
    // Another batch's, perhaps not there yet.
    if (cell.maker != 0 && cell.maker != batch_) location.reset();
  } else if (make && passed_ != tag->name()) {
    // Pieces of a page follow each other, and are one reading of it: it is tried once.
    location = resident_->MakeRoom(rows);
    made = location.has_value();
  }
  passed_ = location.has_value() ? 0 : tag->name();
  ++(made ? stats.copies : location.has_value() ? stats.hits : stats.passes);
  const uint64_t now = ++resident_->clock_;
  tag->set_last_read(now);
  if (!location.has_value()) return std::nullopt;

  Slab& slab = resident_->slabs_[location->slab];
  const size_t offset = resident_->OffsetOf(*location);
  if (made) {
    slab.cells[location->cell] = {tag->name(), batch_};
    tag->set_location(uint64_t{location->slab} << 32 | location->cell);
    copies_.push_back({rows.bytes, offset});
    made_.push_back(*location);
  }
  ++slab.pins;
  pinned_.push_back(location->slab);
  slab.last_read = now;
  resident_->by_age_.splice(resident_->by_age_.end(), resident_->by_age_, slab.by_age);
  return offset;
}

void ResidentRows::Use::Done() {
  if (batch_ == 0) return;
  const std::lock_guard lock(resident_->mutex_);
  for (const Location& location : made_)
    resident_->slabs_[location.slab].cells[location.cell].maker = 0;
  for (const uint32_t slab : pinned_) --resident_->slabs_[slab].pins;
  made_.clear();
  pinned_.clear();
  Abandon();
}

void ResidentRows::Use::Abandon() {
  batch_ = 0;
  copies_.clear();
  made_.clear();
  pinned_.clear();
  passed_ = 0;
}

}  // namespace sis::cuda
