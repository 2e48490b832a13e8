// Any bytes as a stored history: DataLoss, or what is encoded as the same bytes, and whose sums
// stay numbers however it is thinned.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/cache/step_ledger.h"
#include "server/memory/byte_budget.h"
#include "server/store/stored_history.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const std::string payload(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<sis::StepHistory> history = sis::ParseHistory(payload);
  if (!history.ok()) {
    if (!absl::IsDataLoss(history.status())) std::abort();
    return 0;
  }
  if (sis::EncodeHistory(*history) != payload) std::abort();
  sis::ByteBudget none(0);
  sis::StepLedger ledger(1, none);
  ledger.Restore(*history);
  if (ledger.History().size() != (history->stretches().empty() ? 0 : 1)) std::abort();
  for (const sis::DrawStretch& all : ledger.History()) {
    if (all.draws <= 0 || !std::isfinite(all.sums.d) || all.ended < all.begun) std::abort();
  }
  return 0;
}
