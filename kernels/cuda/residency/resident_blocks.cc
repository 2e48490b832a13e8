#include "kernels/cuda/residency/resident_blocks.h"

#include <algorithm>

namespace sis::cuda {

ResidentBlocks::ResidentBlocks(ResidentMemory& memory, size_t slab_bytes)
    : memory_(memory), slab_bytes_(slab_bytes), slabs_(memory.size() / slab_bytes) {
  for (size_t i = slabs_.size(); i > 0; --i) unused_.push_back(static_cast<uint32_t>(i - 1));
  stats_.capacity_bytes = static_cast<int64_t>(slabs_.size() * slab_bytes);
}

ResidentBlocksStats ResidentBlocks::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::optional<ResidentBlocks::Location> ResidentBlocks::FindLocation(const BlockTag& tag) const {
  const uint64_t note = tag.location();
  const Location location{static_cast<uint32_t>(note >> 32), static_cast<uint32_t>(note)};
  if (location.slab >= slabs_.size()) return std::nullopt;
  const std::vector<Copy>& copies = slabs_[location.slab].copies;
  if (location.copy >= copies.size() || copies[location.copy].name != tag.name()) {
    return std::nullopt;
  }
  return location;
}

std::optional<uint32_t> ResidentBlocks::TakeSlab(const BlockTag& tag) {
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
  // A block that was resident before doesn't replace blocks that were read since. Otherwise a step
  // larger than the memory, read repeatedly, would never find its blocks there.
  if (tag.last_read() != 0 && tag.last_read() <= slab.last_read) return std::nullopt;
  stats_.evictions += static_cast<int64_t>(slab.copies.size());
  stats_.used_bytes -= static_cast<int64_t>(slab.end);
  slab.copies.clear();
  slab.end = 0;
  memory_.Discard(*oldest * slab_bytes_, slab_bytes_);
  return *oldest;
}

std::optional<ResidentBlocks::Location> ResidentBlocks::MakeSpace(size_t bytes, const BlockTag& tag,
                                                                  uint64_t maker) {
  if (bytes > slab_bytes_) return std::nullopt;
  if (!filling_.has_value() || slabs_[*filling_].end + bytes > slab_bytes_) {
    const std::optional<uint32_t> taken = TakeSlab(tag);
    // Smaller blocks may still fit into the current slab.
    if (!taken.has_value()) return std::nullopt;
    filling_ = taken;
  }
  Slab& slab = slabs_[*filling_];
  slab.copies.push_back({tag.name(), maker, slab.end});
  slab.end += bytes;
  stats_.used_bytes += static_cast<int64_t>(bytes);
  return Location{*filling_, static_cast<uint32_t>(slab.copies.size() - 1)};
}

std::optional<size_t> ResidentBlocks::Use::Find(std::span<const std::byte> block,
                                                const BlockTag* tag) {
  if (resident_ == nullptr || tag == nullptr) {
    passed_ = 0;
    return std::nullopt;
  }
  const std::lock_guard lock(resident_->mutex_);
  if (batch_ == 0) batch_ = ++resident_->batches_;
  ResidentBlocksStats& stats = resident_->stats_;
  bool made = false;
  std::optional<Location> location = resident_->FindLocation(*tag);
  if (location.has_value()) {
    // Another batch makes the copy, which may be incomplete.
    const uint64_t maker = resident_->At(*location).maker;
    if (maker != 0 && maker != batch_) location.reset();
  } else if (passed_ != tag->name()) {
    // Consecutive ranges of a block count as one read, so the copy is tried once.
    location = resident_->MakeSpace(CopyBytes(block.size()), *tag, batch_);
    made = location.has_value();
  }
  passed_ = location.has_value() ? 0 : tag->name();
  ++(made ? stats.copies : location.has_value() ? stats.hits : stats.passes);
  const uint64_t now = ++resident_->clock_;
  tag->set_last_read(now);
  if (!location.has_value()) return std::nullopt;

  const size_t offset = resident_->OffsetOf(*location);
  if (made) {
    tag->set_location(uint64_t{location->slab} << 32 | location->copy);
    uploads_.push_back({block, offset});
    made_.push_back(*location);
  }
  Slab& slab = resident_->slabs_[location->slab];
  ++slab.pins;
  pinned_.push_back(location->slab);
  slab.last_read = now;
  resident_->by_age_.splice(resident_->by_age_.end(), resident_->by_age_, slab.by_age);
  return offset;
}

void ResidentBlocks::Use::Done() {
  if (batch_ == 0) return;
  const std::lock_guard lock(resident_->mutex_);
  for (const Location& location : made_) resident_->At(location).maker = 0;
  for (const uint32_t slab : pinned_) --resident_->slabs_[slab].pins;
  Abandon();
}

void ResidentBlocks::Use::Abandon() {
  batch_ = 0;
  uploads_.clear();
  made_.clear();
  pinned_.clear();
  passed_ = 0;
}

}  // namespace sis::cuda
