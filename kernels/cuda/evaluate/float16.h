// The value of a float16, exactly: on the device by the one instruction that it has for it.
#pragma once

#include <cstdint>

#include "kernels/numerics/float16.h"
#include "kernels/numerics/host_device.h"
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace sis::cuda {

SIS_HOST_DEVICE inline float Float16Value(uint16_t code) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(code));
#else
  return DecodeFloat16(code);
#endif
}

}  // namespace sis::cuda
