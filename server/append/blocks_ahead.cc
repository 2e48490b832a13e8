#include "server/append/blocks_ahead.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/append/sequences_ahead.h"
#include "server/messages/slices.h"
#include "server/threads/side_by_side.h"
#include "server/wire/received_arrays.h"
#include "server/wire/segment_range.h"

namespace sis {
namespace {

using Entries = std::span<const AppendEntryView>;

// How many positions an entry says it has; whether it may is seen when it is read.
uint32_t PositionsIn(const AppendEntryView& entry, const SharedSegment* segment) {
  size_t bytes = entry.sampled_ids.size();
  if (segment != nullptr && bytes > 0) {
    const absl::StatusOr<SegmentRange> range = RangeIn(*segment, entry.sampled_ids);
    bytes = range.ok() ? range->size : 0;
  }
  return static_cast<uint32_t>(std::min<size_t>(bytes / sizeof(int32_t), UINT32_MAX));
}

struct BlocksOfSequence {
  SequenceName name;
  std::vector<size_t> entries = {};  // by number
  bool whole = false;                // no more can be done ahead
  std::shared_ptr<Sequence> sequence = nullptr;
};

std::vector<BlocksOfSequence> BySequence(Entries piece) {
  std::vector<BlocksOfSequence> sequences;
  absl::flat_hash_map<SequenceNameView, size_t> places;
  for (size_t i = 0; i < piece.size(); ++i) {
    if (!CheckSequenceId(piece[i].sequence_id).ok()) continue;
    const SequenceNameView name = NameIn(piece[i]);
    const auto [place, is_new] = places.try_emplace(name, sequences.size());
    if (is_new) sequences.push_back({{std::string(name.id), name.attempt}});
    BlocksOfSequence& blocks = sequences[place->second];
    blocks.whole = blocks.whole || piece[i].kind != AppendEntryView::Kind::kBlock;
    if (!blocks.whole) blocks.entries.push_back(i);
  }
  std::erase_if(sequences, [](const BlocksOfSequence& blocks) { return blocks.entries.empty(); });
  return sequences;
}

// Until one would be refused.
void AppendBlocks(const Run& run, Entries piece, const SharedSegment* segment,
                  const BlocksOfSequence& blocks, BlockReader& reader,
                  std::span<std::optional<StoredBlock>> stored) {
  if (blocks.sequence == nullptr) return;
  for (const size_t i : blocks.entries) {
    const AppendEntryView& block = piece[i];
    const absl::StatusOr<RecordView> records = reader.Read(block, segment, run);
    Sequence::Appended appended;
    if (!records.ok() || !blocks.sequence
                              ->Append(block.first_position, block.policy_version, *records,
                                       reader.ranks(), &appended)
                              .ok()) {
      return;
    }
    stored[i] = {appended, BytesOf(*records)};
  }
}

}  // namespace

bool BlocksAhead::RoomIsAmple(Entries piece, const SharedSegment* segment) const {
  if (room_queue_->Contested(*run_) != nullptr) return false;
  int64_t bytes = 0;
  for (const AppendEntryView& entry : piece) {
    bytes += run_->BaseBytes(NameIn(entry)) +
             Sequence::BytesOfFirstBlock(run_->config().record_format(), entry.first_position,
                                         PositionsIn(entry, segment));
  }
  return run_->budget().Lacking(bytes) == 0 && server_budget_->Lacking(bytes) == 0;
}

void BlocksAhead::BeginPiece(Entries entries, const SharedSegment* segment) {
  Forget();
  const size_t most = std::min(entries.size(), kPieceEntries);
  size_t slots = 0;
  while (end_ < most && slots < kPieceSlots) {
    slots += size_t{PositionsIn(entries[end_++], segment)} * run_->config().top_k;
    if (end_ == kFirstEntries && slots < kFirstSlots) end_ = most;
  }
  size_t lanes = std::min(slots / kLaneSlots, workers_->threads());
  const Entries piece = entries.first(end_);
  if (lanes <= 1 || !RoomIsAmple(piece, segment)) return;
  std::vector<BlocksOfSequence> sequences = BySequence(piece);
  lanes = std::min(lanes, sequences.size());
  if (lanes <= 1) return;

  // In their order, in which they may be evicted some day.
  for (BlocksOfSequence& blocks : sequences) {
    blocks.sequence = run_->FindOrCreate(blocks.name).value_or(nullptr);
  }
  stored_.resize(end_);
  std::vector<BlockReader> readers(lanes);
  std::atomic<size_t> next = 0;
  SideBySide(*workers_, run_->id(), lanes, [&](size_t lane) {
    for (size_t i = next++; i < sequences.size(); i = next++) {
      AppendBlocks(*run_, piece, segment, sequences[i], readers[lane], stored_);
    }
  });
  for (BlocksOfSequence& blocks : sequences) {
    blocks.sequence.reset();
    if (!stored_[blocks.entries.front()].has_value()) run_->NoteShortened(blocks.name);
  }
}

}  // namespace sis
