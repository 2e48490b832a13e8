// Pages: the records of consecutive positions as one byte string, versioned and checksummed
// (docs/page_format.md).
//
// A page holds what ValidateRecords accepts. Log-probs may be rounded; sampled log-probs, ids and
// ranks never are. There are two versions: one gives each position room for K slots, a ragged page
// only for those it uses.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/records/encoding.h"
#include "kernels/records/grouped_log_probs.h"
#include "kernels/records/rank_span.h"
#include "kernels/records/record_view.h"

namespace sis {

inline constexpr uint32_t kMaxPagePositions = 4096;
inline constexpr int32_t kMaxPageVocabulary = 1 << 24;

// The rank that marks a position without a record: a gap in the page. Where ranks are bytes, its
// low byte.
inline constexpr uint16_t kRankAbsent = 0xfffe;

// The numbers are those of byte 8 of a page.
enum class PageVersion : uint8_t { kFixed = 1, kRagged = 2 };

struct PageHeader {
  LogProbEncoding encoding;
  int slots;                // K in [1, kMaxTopK]; fixed pages have kMaxTopKOfByteRanks at most
  int32_t vocabulary_size;  // in [1, kMaxPageVocabulary]
  uint32_t first_position;
  uint32_t positions;  // in [1, kMaxPagePositions]; the last is at most 2^32 - 1
  PageVersion version = PageVersion::kFixed;
  // What a ragged page holds, as HeaderOf counts it; else 0.
  uint32_t used_slots = 0;  // of all positions
  uint32_t outside = 0;     // sampled tokens that are not in the set

  bool ragged() const { return version == PageVersion::kRagged; }

  friend bool operator==(const PageHeader&, const PageHeader&) = default;
};

// Bits that hold every id of a vocabulary, at least 1.
constexpr int IdBits(int32_t vocabulary_size) {
  return vocabulary_size <= 2
             ? 1
             : static_cast<int>(std::bit_width(static_cast<uint32_t>(vocabulary_size - 1)));
}

// A part of a page, in bytes.
struct PageSection {
  size_t begin = 0;
  size_t bytes = 0;
};

// Where the sections of a page lie. Those of a version that doesn't have them are empty.
struct PageLayout {
  PageSection log_probs;          // groups of rows (kernels/records/encoding.h), or packed codes
  PageSection sampled_log_probs;  // float32
  PageSection ranks;              // uint8; packed in ragged pages, as are the others there
  PageSection ids;  // groups of K + 1 rows of IdBits: the sampled ids, then rank by rank
  // Of ragged pages only.
  PageSection counts;
  PageSection multipliers;
  PageSection outside_ids;
  size_t end;
};

PageLayout LayOutPage(const PageHeader& header);

// The header with what a page of these records holds, which EncodePage takes. The records must be
// as for that. counts [positions], unless it is empty, gets how many slots each position has in a
// ragged page.
PageHeader HeaderOf(const PageHeader& header, const RecordView& records,
                    std::span<const uint16_t> ranks, std::span<uint16_t> counts = {});

inline size_t PageBytes(const PageHeader& header) { return LayOutPage(header).end; }

// Writes a page of PageBytes. The records must be valid, and ranks [positions] as ValidateRecords
// gave them; where a rank is kRankAbsent what the other arrays hold means nothing. The page's own
// ranks may differ: a sampled token whose slot is too low to be encoded is outside of the set.
// rounded_log_probs [positions, K], unless it is empty, gets the log-probs as the page has them; of
// records with counts, which only a ragged page takes, in used slots only.
void EncodePage(const PageHeader& header, const RecordView& records,
                std::span<const uint16_t> ranks, std::span<std::byte> page,
                std::span<float> rounded_log_probs = {});

// The sections of a page, as they lie in its bytes.
struct PageView {
  PageHeader header;
  std::span<const std::byte> log_probs;
  std::span<const std::byte> sampled_log_probs;
  std::span<const std::byte> ranks;
  std::span<const std::byte> ids;
  // Of ragged pages only.
  std::span<const std::byte> counts = {};
  std::span<const std::byte> multipliers = {};
  std::span<const std::byte> outside_ids = {};
};

// Checks header, size and checksum, but of what the sections hold only what tells where the rest
// is: for pages of our own memory. The view refers to `page`. DataLoss if anything is wrong.
absl::StatusOr<PageView> OpenPage(std::span<const std::byte> page);

// The view of a page whose header is known, of PageBytes: nothing is checked. What is read of bytes
// that are not those of a page may be anything, but is read of nothing else.
PageView ViewPage(const PageHeader& header, std::span<const std::byte> page);

// Where records go: n positions, row-major. Arrays other than ranks may be left out, empty.
struct RecordRows {
  std::span<int32_t> sampled_ids = {};      // [n]
  std::span<float> sampled_log_probs = {};  // [n]
  std::span<int32_t> ids = {};              // [n, K]
  std::span<float> log_probs = {};          // [n, K]
  std::span<uint16_t> ranks;                // [n]
};

// Decodes the records [first, first + n) of a page, where n = rows.ranks.size(), without checking
// them, into those arrays that are not left out. Absent positions get -1, NaN, -1 and -inf, and
// rank kRankAbsent.
void ReadRecords(const PageView& page, uint32_t first, const RecordRows& rows);

// Where records go without their unused slots: n positions. All but `counts` may be left out,
// empty.
struct UsedRows {
  std::span<int32_t> sampled_ids = {};      // [n]
  std::span<float> sampled_log_probs = {};  // [n]
  std::span<uint16_t> counts;               // [n]: how many slots each position uses
  // One position's after the other's. Room for n * K is always enough.
  std::span<int32_t> ids = {};
  std::span<float> log_probs = {};
};

// As ReadRecords, the records [first, first + n) of a ragged page, where n = rows.counts.size(),
// all of them present. Returns how many slots they use.
size_t ReadUsedSlots(const PageView& page, uint32_t first, const UsedRows& rows);

// What tells where in a ragged page the slots are, unpacked. Of the pages that a cache has none of
// it is on the heap.
struct UnpackedCounts {
  static constexpr size_t kFewPositions = 64;

  absl::InlinedVector<uint16_t, kFewPositions> counts;  // as in RaggedLogProbs, of all groups
  absl::InlinedVector<uint32_t, kFewPositions / kGroupPositions + 1> begins;  // the same
  absl::InlinedVector<uint16_t, kFewPositions> ranks;  // [positions], of the sampled tokens
};

// Makes room as needed, and keeps it. The counts come to no more slots than the header says.
void UnpackCounts(const PageView& page, UnpackedCounts& into);

// Of positions [first, first + count).
RaggedLogProbs RaggedLogProbsOf(const PageView& page, const UnpackedCounts& unpacked, size_t first,
                                size_t count);

// Rows [first, first + count), K = slots.
RecordRows SubRows(const RecordRows& rows, size_t first, size_t count, size_t slots);

// What stands where nothing is recorded: -1, NaN, -1 and -inf. Leaves the ranks.
void WriteAbsent(const RecordRows& rows);

// The records of a page. Absent positions hold -1, NaN, -1 and -inf, and rank kRankAbsent.
struct DecodedPage {
  PageHeader header;
  std::vector<int32_t> sampled_ids;
  std::vector<float> sampled_log_probs;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  std::vector<uint16_t> ranks;

  RecordView records() const { return {sampled_ids, sampled_log_probs, ids, log_probs}; }
  RecordRows rows() { return {sampled_ids, sampled_log_probs, ids, log_probs, ranks}; }
};

// Checks everything: what is returned could have been the result of encoding valid records, and
// encodes to the same bytes. DataLoss names what is wrong, and where.
absl::StatusOr<DecodedPage> DecodePage(std::span<const std::byte> page);

}  // namespace sis
