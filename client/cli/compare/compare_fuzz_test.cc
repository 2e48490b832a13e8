// Whatever two files hold, comparing them ends in a status or in reports.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "client/cli/compare/reports.h"
#include "client/compare/comparison.h"
#include "client/recorded/recorded_log_probs.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

void CompareAndReport(const std::vector<sis::RecordedSequence>& a,
                      const std::vector<sis::RecordedSequence>& b) {
  const auto comparison = sis::Compare(a, "a", b, "b", {});
  if (!comparison.ok()) return;
  Check(!comparison->diagnosis.verdict.empty());
  Check(!sis::TextReport(*comparison, 10).empty());
  Check(!sis::JsonReport(*comparison).empty());
  Check(!sis::HtmlReport(*comparison).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto sequences = sis::ParseRecordedLogProbs(text, "input");
  if (!sequences.ok()) return 0;
  // Beside itself, and beside itself without the first positions.
  std::vector<sis::RecordedSequence> shifted = *sequences;
  for (sis::RecordedSequence& sequence : shifted) {
    if (!sequence.positions.empty()) sequence.positions.erase(sequence.positions.begin());
  }
  CompareAndReport(*sequences, *sequences);
  CompareAndReport(*sequences, shifted);
  return 0;
}
