#include "server/store/log_entries.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/page/encoded_page.h"
#include "server/store/stored_item.h"

namespace sis {
namespace {

// A block that is being put together.
struct Gathered {
  uint32_t end() const { return first_position + static_cast<uint32_t>(block.ranks.size()); }

  void Add(const Sequence::Reader::Piece& piece, size_t slots) {
    const size_t before = block.ranks.size();
    block.ranks.resize(before + piece.count);
    block.sampled_ids.resize(block.ranks.size());
    block.sampled_log_probs.resize(block.ranks.size());
    block.ids.resize(block.ranks.size() * slots);
    block.log_probs.resize(block.ranks.size() * slots);
    piece.page->Read(piece.index, SubRows(block.rows(), before, piece.count, slots));
  }

  uint32_t first_position;
  uint64_t policy_version;
  DecodedPage block = {};  // but for its header
};

void AppendToForm(std::string& form, const LogEntry& entry) {
  const std::string bytes = EncodeEntry(entry);
  const auto size = static_cast<uint32_t>(bytes.size());
  form.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(bytes);
}

absl::Status ReplayBlock(const LogEntry& entry, Sequence& sequence, int64_t& bytes_short) {
  const absl::StatusOr<DecodedPage> page = DecodePage(std::as_bytes(std::span(entry.payload)));
  if (!page.ok()) return page.status();
  const RecordFormat& format = sequence.format();
  if (page->header.encoding != format.encoding || page->header.slots != format.slots ||
      page->header.vocabulary_size != format.vocabulary_size ||
      page->header.first_position != entry.position ||
      std::ranges::find(page->ranks, kRankAbsent) != page->ranks.end()) {
    return absl::DataLossError(
        absl::StrCat("a stored block at position ", entry.position, " is of another sequence"));
  }
  absl::Status status =
      sequence.Append(entry.position, entry.policy_version, page->records(), page->ranks, nullptr);
  if (absl::IsResourceExhausted(status)) {
    bytes_short =
        sequence.BytesToAppend(entry.position, entry.policy_version, page->records(), page->ranks);
  }
  return status;
}

// A gap's payload (docs/page_format.md).
struct [[gnu::packed]] GapPayload {
  uint32_t length;
  MissingReason reason;
};

absl::Status ReplayGap(const LogEntry& entry, Sequence& sequence, int64_t& bytes_short) {
  GapPayload gap = {};
  if (entry.payload.size() == sizeof(gap)) std::memcpy(&gap, entry.payload.data(), sizeof(gap));
  if (gap.length == 0 || gap.length > UINT32_MAX - entry.position ||
      gap.reason != MissingReason::kInvalidLogProb) {
    return absl::DataLossError(
        absl::StrCat("a stored gap at position ", entry.position, " has no such length or reason"));
  }
  absl::Status status = sequence.AppendGap({entry.position, gap.length, gap.reason}).status();
  if (absl::IsResourceExhausted(status)) bytes_short = Sequence::kGapBytes;
  return status;
}

}  // namespace

LogEntry GapEntry(const Missing& gap) {
  const GapPayload payload{gap.count, gap.reason};
  return {.kind = LogEntry::Kind::kGap,
          .position = gap.first_position,
          .payload = std::string(reinterpret_cast<const char*>(&payload), sizeof(payload))};
}

std::vector<LogEntry> BlockEntries(const RecordFormat& format, uint32_t first_position,
                                   uint64_t policy_version, const RecordView& records,
                                   std::span<const uint16_t> ranks) {
  const size_t slots = format.slots;
  std::vector<LogEntry> entries;
  for (size_t first = 0; first < ranks.size();) {
    PageHeader header{.encoding = format.encoding,
                      .slots = format.slots,
                      .vocabulary_size = format.vocabulary_size,
                      .first_position = first_position + static_cast<uint32_t>(first),
                      .positions = static_cast<uint32_t>(
                          std::min<size_t>(ranks.size() - first, kMaxPagePositions)),
                      .version = format.page_version};
    const auto part = [&] { return SubView(records, first, header.positions, slots); };
    const auto count_slots = [&] {
      header = HeaderOf(header, part(), ranks.subspan(first, header.positions));
    };
    for (count_slots(); PageBytes(header) > kMaxRowBytes; count_slots()) {
      header.positions = (header.positions + 1) / 2;
    }
    const size_t count = header.positions;
    LogEntry entry{.kind = LogEntry::Kind::kBlock,
                   .position = header.first_position,
                   .policy_version = policy_version,
                   .payload = std::string(PageBytes(header), '\0')};
    EncodePage(header, part(), ranks.subspan(first, count),
               std::as_writable_bytes(std::span(entry.payload)));
    entries.push_back(std::move(entry));
    first += count;
  }
  return entries;
}

absl::Status Replay(const LogEntry& entry, Sequence& sequence, int64_t& bytes_short) {
  switch (entry.kind) {
    case LogEntry::Kind::kBlock:
      return ReplayBlock(entry, sequence, bytes_short);
    case LogEntry::Kind::kSeal: {
      absl::Status status = sequence.Seal(entry.position, entry.payload);
      if (absl::IsResourceExhausted(status)) bytes_short = Sequence::AnnotationBytes(entry.payload);
      return status;
    }
    case LogEntry::Kind::kGap:
      return ReplayGap(entry, sequence, bytes_short);
  }
  return absl::DataLossError("a log entry of no kind");
}

absl::StatusOr<std::string> WholeForm(const Sequence& sequence) {
  std::string form;
  absl::Status status;
  std::optional<Gathered> gathered;
  const auto flush = [&] {
    if (!gathered.has_value()) return;
    for (const LogEntry& entry :
         BlockEntries(sequence.format(), gathered->first_position, gathered->policy_version,
                      gathered->block.records(), gathered->block.ranks)) {
      AppendToForm(form, entry);
    }
    gathered.reset();
  };
  {
    const Sequence::Reader reader(sequence);
    const uint32_t length = reader.committed_length();
    // Before the blocks that fill them.
    for (const Missing& gap : reader.Gaps()) AppendToForm(form, GapEntry(gap));
    reader.Check(0, length);
    reader.ForEachPiece(0, length, [&](const Sequence::Reader::Piece& piece) {
      if (piece.page == nullptr) return;
      if (piece.page->corrupt()) {
        status = absl::DataLossError(absl::StrCat("position ", piece.first_position));
        return;
      }
      const bool goes_on = gathered.has_value() && gathered->end() == piece.first_position &&
                           gathered->policy_version == piece.version &&
                           gathered->block.ranks.size() < kMaxPagePositions;
      if (!goes_on) {
        flush();
        gathered = Gathered{piece.first_position, piece.version};
      }
      gathered->Add(piece, static_cast<size_t>(sequence.format().slots));
    });
    flush();
  }
  if (!status.ok()) return status;
  if (const std::optional<uint32_t> length = sequence.sealed_length(); length.has_value()) {
    AppendToForm(
        form,
        {.kind = LogEntry::Kind::kSeal, .position = *length, .payload = sequence.annotation()});
  }
  return form;
}

absl::StatusOr<std::vector<LogEntry>> ParseWholeForm(std::string_view form) {
  std::vector<LogEntry> entries;
  while (!form.empty()) {
    uint32_t size = 0;
    if (form.size() >= sizeof(size)) std::memcpy(&size, form.data(), sizeof(size));
    if (form.size() < sizeof(size) || form.size() - sizeof(size) < size) {
      return absl::DataLossError("a whole form that ends early");
    }
    absl::StatusOr<LogEntry> entry = ParseEntry(form.substr(sizeof(size), size));
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
    form.remove_prefix(sizeof(size) + size);
  }
  return entries;
}

}  // namespace sis
