// The dense kernel behind a C entry point, for dense_peer.py and the test against numpy.
#include <cstdint>
#include <cstdio>

#include "kernels/decide/dense/dense.h"

// Contiguous float32 (0) or bfloat16 (1) logits [positions, vocabulary]; ids and log-probs are
// [positions, slots], the others [positions]. 0 if all is well; else the error is on stderr.
extern "C" int sis_gather_log_probs(int type, const std::byte* logits, int64_t positions,
                                    int32_t vocabulary, int32_t slots, const int32_t* sampled_ids,
                                    const int32_t* ids, float* sampled_log_probs, float* log_probs,
                                    double* log_sum_exps) {
  const auto logit_type = static_cast<sis::LogitType>(type);
  const size_t row_bytes = vocabulary * sis::LogitBytes(logit_type);
  const size_t k = slots;
  for (int64_t i = 0; i < positions; ++i) {
    const sis::LogitRow row{logit_type, logits + i * row_bytes, vocabulary};
    const absl::StatusOr<double> log_sum_exp = sis::LogSumExpOfRow(row, static_cast<uint32_t>(i));
    if (!log_sum_exp.ok()) {
      std::fprintf(stderr, "%s\n", log_sum_exp.status().ToString().c_str());
      return 1;
    }
    log_sum_exps[i] = *log_sum_exp;
    sis::GatherLogProbs(row, *log_sum_exp, {sampled_ids + i, 1}, {sampled_log_probs + i, 1});
    sis::GatherLogProbs(row, *log_sum_exp, {ids + i * k, k}, {log_probs + i * k, k});
  }
  return 0;
}
