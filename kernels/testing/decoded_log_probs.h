// Packed rows of log-probs as plain arrays. For tests.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/records/grouped_log_probs.h"

namespace sis {

// Decodes n positions into log_probs [n, K], row-major.
inline void DecodeLogProbs(LogProbEncoding encoding, std::span<const std::byte> from, int slots,
                           std::span<float> log_probs) {
  const LogProbReader reader({}, {.rows = from, .encoding = encoding}, slots);
  for (size_t i = 0; i < log_probs.size(); ++i) log_probs[i] = reader.At(i / slots, i % slots);
}

}  // namespace sis
