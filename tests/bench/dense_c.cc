// The dense kernel behind a C entry point, for dense_peer.py and the test against numpy.
#include <cstdint>
#include <cstdio>

#include "kernels/decide/dense/dense.h"

// Contiguous float32 (0), float16 (1) or bfloat16 (2) logits [positions, vocabulary]; records and
// results as in kernels/decide/dense/dense.h. 0 if all is well; else the error is on stderr.
extern "C" int sis_reduce_logits(int type, const void* logits, int64_t positions,
                                 int32_t vocabulary, int32_t slots, const int32_t* sampled_ids,
                                 const int32_t* ids, const float* log_probs,
                                 float* sampled_log_probs, float* log_envelopes,
                                 float* covered_masses, double* log_sum_exps) {
  const auto logit_type = static_cast<sis::LogitType>(type);
  const auto n = static_cast<size_t>(positions);
  const absl::Status status = sis::ReduceLogits(
      {.type = logit_type,
       .data = static_cast<const std::byte*>(logits),
       .width = vocabulary,
       .row_stride_bytes = static_cast<ptrdiff_t>(vocabulary * sis::LogitBytes(logit_type))},
      {{sampled_ids, n}, {ids, n * slots}, {log_probs, n * slots}},
      {.slots = slots, .top_k = slots},
      {{sampled_log_probs, n}, {log_envelopes, n}, {covered_masses, n}, {log_sum_exps, n}});
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
