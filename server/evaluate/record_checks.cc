#include "server/evaluate/record_checks.h"

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"

namespace sis {

absl::Status CheckRecordDigest(const SliceRange& slice, const Sequence::Reader& reader) {
  if (!slice.expected_digest.has_value()) return absl::OkStatus();
  const uint64_t digest = reader.Digest(slice.first_position, slice.count);
  if (digest == *slice.expected_digest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("record_digest ", *slice.expected_digest, ", but the records of ",
                   ToString(slice.name), " positions [", slice.first_position, ", ",
                   slice.first_position + slice.count, ") have ", digest));
}

absl::Status CheckSampledIds(const SliceRange& slice, const Sequence::Reader& reader,
                             const EvaluateInput& input, size_t offset) {
  if (!slice.sampled_ids_crc32c.has_value()) return absl::OkStatus();
  uint32_t crc = 0;
  RowBuffer buffer;
  reader.ForEachPiece(slice.first_position, slice.count, [&](const Sequence::Reader::Piece& piece) {
    if (piece.page == nullptr || piece.page->corrupt()) return;
    const std::span<const int32_t> ids =
        piece.page->Rows(buffer).sampled_ids.subspan(piece.index, piece.count);
    const size_t first = offset + (piece.first_position - slice.first_position);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (input.masked(first + i)) continue;
      crc = ExtendCrc32c(crc, std::as_bytes(ids.subspan(i, 1)));
    }
  });
  if (crc == *slice.sampled_ids_crc32c) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "sampled_ids_crc32c ", *slice.sampled_ids_crc32c, ", but the tokens recorded of ",
      ToString(slice.name), " positions [", slice.first_position, ", ",
      slice.first_position + slice.count, ") have ", crc, ": is the batch shifted or permuted?"));
}

}  // namespace sis
