// Any bytes as a stored step: DataLoss, or a step that encodes to the same bytes.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "server/store/stored_step.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const std::string payload(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<sis::StepLedger::Step> step = sis::ParseStep(payload);
  if (step.ok() ? sis::EncodeStep(*step) != payload : !absl::IsDataLoss(step.status())) {
    std::abort();
  }
  return 0;
}
