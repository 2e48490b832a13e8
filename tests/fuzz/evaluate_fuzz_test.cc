// Any bytes as an Evaluate: no crash, an answer of the right size or an error, and no change to the
// record.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/testing/scalar_backend.h"
#include "server/testing/evaluate_at_once.h"
#include "tests/fuzz/cache_with_one_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::v1::EvaluateRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  static sis::CacheWithOneRecord cache;
  static const sis::ScalarBackend backend;
  sis::Run& run = *cache.run();
  const absl::StatusOr<sis::v1::EvaluateResponse> response =
      sis::EvaluateAtOnce(run, backend, request);
  if (response.ok()) {
    const sis::v1::Totals& totals = response->totals();
    uint64_t positions = 0;
    for (const sis::v1::Slice& slice : request.slices()) positions += slice.length();
    if (totals.accepted() + totals.rejected() + totals.outside_top_k() + totals.missing() +
            totals.masked() !=
        positions) {
      std::abort();
    }
    if (!(totals.d_sis() <= totals.d())) std::abort();
    for (const std::string* output : {&response->surrogates(), &response->coefficients()}) {
      if (!output->empty() && output->size() != positions * sizeof(float)) std::abort();
      for (size_t i = 0; i < output->size(); i += sizeof(float)) {
        float weight;
        std::memcpy(&weight, output->data() + i, sizeof(weight));
        if (!(weight >= 0 && weight < 2e38f)) std::abort();
      }
    }
  } else if (response.status().message().empty()) {
    std::abort();
  }
  if (run.Describe().positions != 2) std::abort();
  return 0;
}
