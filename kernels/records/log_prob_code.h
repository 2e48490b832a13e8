// One log-prob in each encoding, rounded one way: behaviour log-probs down and current ones up, so
// that no envelope is ever below the true one.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/float16.h"
#include "kernels/numerics/host_device.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"

namespace sis {

// `multiplier` matters to kFixed12 only. x is a log-prob of at most 1/64, not NaN.

SIS_HOST_DEVICE constexpr float DecodeLogProb(LogProbEncoding encoding, uint32_t code,
                                              uint32_t multiplier) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return std::bit_cast<float>(code);
    case LogProbEncoding::kFloat16:
      return DecodeFloat16(static_cast<uint16_t>(code));
    case LogProbEncoding::kFixed12:
      return DecodeFixed12(code, multiplier);
  }
  return 0;
}

// The code of the largest value that is not above x; that of -inf if no finite one is.
SIS_HOST_DEVICE constexpr uint32_t EncodeRoundedDown(LogProbEncoding encoding, float x,
                                                     uint32_t multiplier) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return std::bit_cast<uint32_t>(x);
    case LogProbEncoding::kFloat16:
      return Float16RoundedDown(x);
    case LogProbEncoding::kFixed12:
      return Fixed12RoundedDown(x, multiplier);
  }
  return 0;
}

// The code of the smallest value that is not below x: the lowest finite one if x is finite and
// lower, -inf for -inf.
SIS_HOST_DEVICE constexpr uint32_t EncodeRoundedUp(LogProbEncoding encoding, float x,
                                                   uint32_t multiplier) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return std::bit_cast<uint32_t>(x);
    case LogProbEncoding::kFloat16:
      return Float16RoundedUp(x);
    case LogProbEncoding::kFixed12:
      return Fixed12RoundedUp(x, multiplier);
  }
  return 0;
}

}  // namespace sis
