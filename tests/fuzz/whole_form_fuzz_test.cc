// Any bytes as a whole form, as a store may hand it out: DataLoss, or entries that encode to just
// those bytes. A sequence replays them; what it refuses changes nothing, and the form that it is
// stored in makes it again, though perhaps in other blocks.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/block/block.h"
#include "server/store/log_entries.h"
#include "server/store/stored_item.h"

namespace sis {
namespace {

// Config of the run in tests/fuzz/cache_with_one_record.h.
const RunConfig kConfig = {.vocabulary_size = 10, .top_k = 2};
// Data that fits into this budget also fits into one of twice the size, however it is cut into
// blocks.
constexpr int64_t kBytes = 32 << 10;
// Append lets nobody begin beyond --max_positions; what lies in front of a block is gone through.
constexpr uint32_t kLastBegin = 8192;

void Require(bool condition) {
  if (!condition) std::abort();
}

struct ReplayedSequence {
  explicit ReplayedSequence(int64_t bytes) : budget(bytes) {
    Require(budget.TryCharge(Sequence::kBaseBytes));
    sequence = std::make_unique<Sequence>(/*key=*/1, budget);
  }
  std::string Form() const { return *WholeForm(*sequence); }
  // The same of sequences whose records are in other blocks.
  std::string Content() const {
    const Sequence::Reader reader(*sequence);
    const uint32_t length = reader.committed_length();
    std::string content = absl::StrCat(length, " ", reader.Digest(0, length));
    for (const Missing& gap : reader.Gaps()) {
      absl::StrAppend(&content, " ", gap.first_position, "+", gap.count);
    }
    return content;
  }

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

void CheckReplay(std::span<const LogEntry> entries) {
  ReplayedSequence replayed(kBytes);
  for (const LogEntry& entry : entries) {
    if (entry.kind == LogEntry::Kind::kBlock && entry.position > kLastBegin) continue;
    const std::string before = replayed.Form();
    const int64_t used = replayed.budget.used();
    int64_t bytes_short = 0;
    const absl::Status status = Replay(entry, kConfig, *replayed.sequence, bytes_short);
    Require(replayed.budget.used() <= kBytes);
    Require((bytes_short > 0) == absl::IsResourceExhausted(status));
    if (status.ok()) continue;
    Require(!status.message().empty());
    Require(replayed.Form() == before && replayed.budget.used() == used);
  }
  ReplayedSequence again(2 * kBytes);
  const absl::StatusOr<std::vector<LogEntry>> own = ParseWholeForm(replayed.Form());
  Require(own.ok());
  for (const LogEntry& entry : *own) {
    int64_t bytes_short = 0;
    Require(Replay(entry, kConfig, *again.sequence, bytes_short).ok());
  }
  Require(again.Content() == replayed.Content());
  Require(again.sequence->sealed_length() == replayed.sequence->sealed_length());
  Require(again.sequence->annotation() == replayed.sequence->annotation());
}

void Check(std::string_view form) {
  absl::StatusOr<std::vector<LogEntry>> entries = ParseWholeForm(form);
  if (!entries.ok()) return Require(absl::IsDataLoss(entries.status()));
  Require(FormOf(*entries) == form);
  CheckReplay(*entries);
  // Blocks under right checksums: what lies behind the checksums is reached.
  for (LogEntry& entry : *entries) {
    const std::span<char> block(entry.payload);
    if (OpenBlock(std::as_bytes(block), /*checksums=*/false).ok()) {
      SealBlock(std::as_writable_bytes(block));
    }
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
