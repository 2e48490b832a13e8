#include "server/fetch/slice_summary.h"

#include <algorithm>
#include <variant>

namespace sis {

SliceSummary Summarize(const SliceRange& slice, uint64_t oldest_fresh_version) {
  SliceSummary summary;
  if (slice.sequence() == nullptr) {
    summary.missing.push_back(
        {slice.first_position, slice.count, std::get<MissingReason>(slice.found)});
    return summary;
  }
  const Sequence::Reader reader(*slice.sequence());
  reader.Check(slice.first_position, slice.count);
  summary.digest = reader.Digest(slice.first_position, slice.count, oldest_fresh_version);
  reader.ForEachPiece(slice.first_position, slice.count, [&](const Sequence::Reader::Piece& piece) {
    if (const auto reason = ReasonMissing(piece, oldest_fresh_version); reason.has_value()) {
      AddMissing(summary.missing, {piece.first_position, piece.count, *reason});
    }
  });
  return summary;
}

void ForEachPiece(const Sequence::Reader& reader, const SliceSummary& summary,
                  uint32_t first_position, uint32_t count,
                  absl::FunctionRef<void(const Sequence::Reader::Piece&)> visit) {
  const auto end_of = [](const Missing& range) { return range.first_position + range.count; };
  auto range = std::ranges::upper_bound(summary.missing, first_position, {}, end_of);
  reader.ForEachPiece(first_position, count, [&](const Sequence::Reader::Piece& piece) {
    const uint32_t end = piece.first_position + piece.count;
    for (Sequence::Reader::Piece part = piece; part.first_position < end;) {
      while (range != summary.missing.end() && end_of(*range) <= part.first_position) ++range;
      uint32_t part_end = end;
      part.block = piece.block;
      if (range != summary.missing.end() && range->first_position <= part.first_position) {
        part.block = nullptr;
        part_end = std::min(end, end_of(*range));
      } else if (range != summary.missing.end()) {
        part_end = std::min(end, range->first_position);
      }
      part.count = part_end - part.first_position;
      visit(part);
      part.first_position = part_end;
      part.index += part.count;
    }
  });
}

}  // namespace sis
