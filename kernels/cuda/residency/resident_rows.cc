#include "kernels/cuda/residency/resident_rows.h"

#include <algorithm>
#include <utility>

namespace sis::cuda {

ResidentRows::ResidentRows(ResidentMemory& memory, size_t chunk_bytes)
    : memory_(memory), chunk_bytes_(chunk_bytes), chunks_(memory.size() / chunk_bytes) {
  for (size_t i = chunks_.size(); i > 0; --i) unused_.push_back(static_cast<uint32_t>(i - 1));
  stats_.capacity_bytes = static_cast<int64_t>(chunks_.size() * chunk_bytes);
}

ResidentRowsStats ResidentRows::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

std::optional<ResidentRows::Place> ResidentRows::FindPlace(const RowsTag& tag) const {
  const uint64_t note = tag.place();
  const Place place{static_cast<uint32_t>(note >> 32), static_cast<uint32_t>(note)};
  if (place.chunk >= chunks_.size()) return std::nullopt;
  const std::vector<Block>& blocks = chunks_[place.chunk].blocks;
  if (place.block >= blocks.size() || blocks[place.block].name != tag.name()) return std::nullopt;
  return place;
}

std::optional<uint32_t> ResidentRows::TakeChunk(const RowsTag& tag) {
  if (!unused_.empty()) {
    const uint32_t chunk = unused_.back();
    unused_.pop_back();
    chunks_[chunk].by_age = by_age_.insert(by_age_.end(), chunk);
    return chunk;
  }
  const auto oldest =
      std::ranges::find_if(by_age_, [&](uint32_t chunk) { return chunks_[chunk].pins == 0; });
  if (oldest == by_age_.end()) return std::nullopt;
  Chunk& chunk = chunks_[*oldest];
  // Rows that come back take no room from those read since they were here last: else a step that is
  // read over and over, and larger than the memory, would find nothing of itself there.
  if (tag.last_read() != 0 && tag.last_read() <= chunk.last_read) return std::nullopt;
  const auto filling = filling_.find(chunk.block_bytes);
  if (filling != filling_.end() && filling->second == *oldest) filling_.erase(filling);
  stats_.evictions +=
      std::ranges::count_if(chunk.blocks, [](const Block& block) { return block.name != 0; });
  stats_.used_bytes -= static_cast<int64_t>(chunk.blocks.size() * chunk.block_bytes);
  chunk.blocks.clear();
  memory_.Discard(*oldest * chunk_bytes_, chunk_bytes_);
  return *oldest;
}

std::optional<ResidentRows::Place> ResidentRows::MakeRoom(const FixedRows& rows) {
  const size_t block_bytes = BlockBytes(rows.bytes.size());
  if (block_bytes > chunk_bytes_) return std::nullopt;
  const size_t most_blocks = chunk_bytes_ / block_bytes;
  auto filling = filling_.find(block_bytes);
  if (filling == filling_.end()) {
    const std::optional<uint32_t> taken = TakeChunk(*rows.tag);
    if (!taken.has_value()) return std::nullopt;
    filling = filling_.try_emplace(block_bytes, *taken).first;
    chunks_[*taken].block_bytes = block_bytes;
    chunks_[*taken].blocks.reserve(most_blocks);
  }
  const uint32_t number = filling->second;
  Chunk& chunk = chunks_[number];
  chunk.blocks.push_back({});
  stats_.used_bytes += static_cast<int64_t>(block_bytes);
  if (chunk.blocks.size() == most_blocks) filling_.erase(filling);
  return Place{number, static_cast<uint32_t>(chunk.blocks.size() - 1)};
}

std::optional<size_t> ResidentRows::Use::Find(const FixedRows& rows, bool make) {
  const RowsTag* const tag = rows.tag;
  if (resident_ == nullptr || tag == nullptr || tag->name() == 0) {
    last_ = {};
    return std::nullopt;
  }
  const std::lock_guard lock(resident_->mutex_);
  if (batch_ == 0) batch_ = ++resident_->batches_;
  // Pieces of a page follow each other, and are one reading of it.
  const bool again = !last_.found && last_.name == tag->name();
  Last last{.tag = tag, .name = tag->name(), .read_before = tag->last_read()};
  std::optional<Place> place = resident_->FindPlace(*tag);
  if (place.has_value()) {
    const Block& block = resident_->chunks_[place->chunk].blocks[place->block];
    // Another batch's, perhaps not there yet.
    if (block.maker != 0 && block.maker != batch_) place.reset();
    last.found = place.has_value();
  } else if (make && !again) {
    place = resident_->MakeRoom(rows);
    last.made = last.found = place.has_value();
  }
  last.counter = last.made    ? &ResidentRowsStats::copies
                 : last.found ? &ResidentRowsStats::hits
                              : &ResidentRowsStats::passes;
  ++(resident_->stats_.*last.counter);
  last_ = last;
  const uint64_t now = ++resident_->clock_;
  tag->set_last_read(now);
  if (!place.has_value()) return std::nullopt;

  Chunk& chunk = resident_->chunks_[place->chunk];
  const size_t offset = resident_->OffsetOf(*place);
  if (last.made) {
    chunk.blocks[place->block] = {tag->name(), batch_};
    tag->set_place(uint64_t{place->chunk} << 32 | place->block);
    copies_.push_back({rows.bytes, offset});
    made_.push_back(*place);
  }
  ++chunk.pins;
  pinned_.push_back(place->chunk);
  chunk.last_read = now;
  resident_->by_age_.splice(resident_->by_age_.end(), resident_->by_age_, chunk.by_age);
  return offset;
}

void ResidentRows::Use::Withdraw() {
  if (last_.counter == nullptr) return;
  const std::lock_guard lock(resident_->mutex_);
  --(resident_->stats_.*last_.counter);
  last_.tag->set_last_read(last_.read_before);
  if (last_.found) {
    --resident_->chunks_[pinned_.back()].pins;
    pinned_.pop_back();
  }
  if (last_.made) {
    // The place stays empty until its chunk is taken back.
    resident_->chunks_[made_.back().chunk].blocks[made_.back().block] = {};
    copies_.pop_back();
    made_.pop_back();
  }
  last_ = {};
}

void ResidentRows::Use::Done() {
  if (batch_ == 0) return;
  const std::lock_guard lock(resident_->mutex_);
  for (const Place& place : made_) resident_->chunks_[place.chunk].blocks[place.block].maker = 0;
  for (const uint32_t chunk : pinned_) --resident_->chunks_[chunk].pins;
  made_.clear();
  pinned_.clear();
  Abandon();
}

void ResidentRows::Use::Abandon() {
  batch_ = 0;
  copies_.clear();
  made_.clear();
  pinned_.clear();
  last_ = {};
}

}  // namespace sis::cuda
