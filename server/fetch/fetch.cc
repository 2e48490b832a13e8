#include "server/fetch/fetch.h"

#include <algorithm>

namespace sis {
namespace {

// Messages near this size move fastest over gRPC.
constexpr size_t kMessageBytes = size_t{1} << 20;
// Size that a slice without blocks, or a missing range, counts for, in bytes. Bounds their number
// in a message.
constexpr size_t kSliceBytes = 32;
constexpr size_t kRangeBytes = 16;

}  // namespace

absl::StatusOr<Fetch> Fetch::Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request) {
  absl::StatusOr<std::vector<SliceRange>> slices = ParseFetchSlices(*run, request.slices());
  if (!slices.ok()) return slices.status();
  absl::Status kept = KeepSequences(*run, *slices, request.keep_seconds());
  if (!kept.ok()) return kept;
  return Fetch(std::move(run), request, *std::move(slices));
}

Fetch::Fetch(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
             std::vector<SliceRange> slices)
    : run_(std::move(run)),
      whole_blocks_(request.whole_blocks()),
      oldest_fresh_version_(run_->oldest_fresh_version()),
      slices_(std::move(slices)) {}

bool Fetch::Next(v1::FetchTopKResponse& message) {
  message.Clear();
  for (size_t bytes = 0; slice_ < slices_.size() && bytes < kMessageBytes;) {
    v1::FetchedSlice& fetched = *message.add_slices();
    fetched.set_slice(static_cast<uint32_t>(slice_));
    bytes += AddToSlice(kMessageBytes - bytes, fetched);
    SliceRange& slice = slices_[slice_];
    if (written_ < slice.count) break;
    fetched.set_length(slice.count);
    fetched.set_record_digest(digest_);
    slice.found = std::shared_ptr<Sequence>();
    ++slice_;
    written_ = 0;
    digest_ = 0;
  }
  return message.slices_size() > 0;
}

size_t Fetch::AddToSlice(size_t space, v1::FetchedSlice& message) {
  const SliceRange& slice = slices_[slice_];
  size_t bytes = kSliceBytes;
  std::vector<Missing> missing;
  if (slice.sequence() == nullptr) {
    missing.push_back({slice.first_position, slice.count, std::get<MissingReason>(slice.found)});
    written_ = slice.count;
  } else {
    const Sequence::Reader reader(*slice.sequence());
    // Reads no more positions at a time than the message may have space for.
    while (written_ < slice.count && bytes < space) {
      reader.ForEachPiece(
          slice.first_position + written_, std::min(slice.count - written_, kMaxBlockPositions),
          [&](const Sequence::Reader::Piece& piece) {
            if (bytes >= space) return;
            uint32_t count = piece.count;
            if (piece.block != nullptr)
              piece.block->Check().IgnoreError();  // the block stores the result
            if (const auto reason = ReasonMissing(piece, oldest_fresh_version_)) {
              const size_t ranges = missing.size();
              AddMissing(missing, {piece.first_position, count, *reason});
              bytes += (missing.size() - ranges) * kRangeBytes;
            } else {
              // May exceed the range that was read.
              count = std::min(slice.count - written_, piece.block->positions() - piece.index);
              AddBlock(*piece.block, message);
              bytes += message.blocks().rbegin()->size();
              digest_ += piece.block->Digest(piece.index, count);
            }
            written_ += count;
          });
    }
  }
  AddMissingRanges(slice_, missing, *message.mutable_missing());
  return bytes;
}

void Fetch::AddBlock(const CachedBlock& block, v1::FetchedSlice& message) const {
  const BlockView view = block.view();
  const auto* const bytes = reinterpret_cast<const char*>(view.bytes.data());
  if (whole_blocks_) {
    message.add_blocks(bytes, view.bytes.size());
    return;
  }
  std::string& parts = *message.add_blocks();
  const size_t part2 = BlockLayout(view.header).sampled_log_probs;
  parts.reserve(sizeof(BlockHeader) + view.bytes.size() - part2);
  parts.append(bytes, sizeof(BlockHeader));
  parts.append(bytes + part2, view.bytes.size() - part2);
}

}  // namespace sis
