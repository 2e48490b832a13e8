// Any bytes as a whole form, as a store may hand it out: DataLoss, or entries that encode to just
// those bytes. A sequence replays them; what it refuses changes nothing, and the form that it is
// stored in makes it again.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/numerics/crc32c.h"
#include "server/store/log_entries.h"
#include "server/store/stored_item.h"

namespace sis {
namespace {

// Of the run that tests/fuzz/cache_with_one_record.h has.
constexpr RecordFormat FormatOf(PageVersion version) {
  return {.encoding = LogProbEncoding::kFixed12,
          .slots = 2,
          .vocabulary_size = 10,
          .page_version = version};
}
// Some pages. What they hold fits into a budget of twice that, however it is cut into blocks.
constexpr int64_t kBytes = 32 << 10;
// Append lets nobody begin beyond --max_positions; what lies in front of a block is gone through.
constexpr uint32_t kLastBegin = 8192;

void Require(bool condition) {
  if (!condition) std::abort();
}

struct ReplayedSequence {
  ReplayedSequence(PageVersion version, int64_t bytes) : budget(bytes) {
    static Arena& arena = *Arena::Map(16 * Arena::kSlabBytes)->release();
    Require(budget.TryCharge(Sequence::kBaseBytes));
    sequence = std::make_unique<Sequence>(FormatOf(version), /*key=*/1, arena, budget);
  }
  std::string Form() const { return *WholeForm(*sequence); }

  ByteBudget budget;
  std::unique_ptr<Sequence> sequence;
};

std::string FormOf(std::span<const LogEntry> entries) {
  std::string form;
  for (const LogEntry& entry : entries) {
    const std::string bytes = EncodeEntry(entry);
    const auto size = static_cast<uint32_t>(bytes.size());
    form.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(bytes);
  }
  return form;
}

// Whatever version the pages in the entries have, the sequence packs its own.
void CheckReplayInto(PageVersion version, std::span<const LogEntry> entries) {
  ReplayedSequence replayed(version, kBytes);
  for (const LogEntry& entry : entries) {
    if (entry.kind == LogEntry::Kind::kBlock && entry.position > kLastBegin) continue;
    const std::string before = replayed.Form();
    const int64_t used = replayed.budget.used();
    int64_t bytes_short = 0;
    const absl::Status status = Replay(entry, *replayed.sequence, bytes_short);
    Require(replayed.budget.used() <= kBytes);
    Require((bytes_short > 0) == absl::IsResourceExhausted(status));
    if (status.ok()) continue;
    Require(!status.message().empty());
    Require(replayed.Form() == before && replayed.budget.used() == used);
  }
  const std::string form = replayed.Form();
  ReplayedSequence again(version, 2 * kBytes);
  const absl::StatusOr<std::vector<LogEntry>> own = ParseWholeForm(form);
  Require(own.ok());
  for (const LogEntry& entry : *own) {
    int64_t bytes_short = 0;
    Require(Replay(entry, *again.sequence, bytes_short).ok());
  }
  Require(again.Form() == form);
}

void CheckReplay(std::span<const LogEntry> entries) {
  CheckReplayInto(PageVersion::kFixed, entries);
  CheckReplayInto(PageVersion::kRagged, entries);
}

void Check(std::string_view form) {
  absl::StatusOr<std::vector<LogEntry>> entries = ParseWholeForm(form);
  if (!entries.ok()) return Require(absl::IsDataLoss(entries.status()));
  Require(FormOf(*entries) == form);
  CheckReplay(*entries);
  // Pages under a right checksum: what lies behind the checksum is reached.
  for (LogEntry& entry : *entries) {
    if (entry.payload.size() < 8) continue;
    const uint32_t crc = ExtendCrc32c(0, std::as_bytes(std::span(entry.payload)).subspan(8));
    std::memcpy(entry.payload.data() + 4, &crc, sizeof(crc));
  }
  CheckReplay(*entries);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  sis::Check(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
