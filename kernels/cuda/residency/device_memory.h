// Memory and streams that are freed with their owners. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <type_traits>

namespace sis::cuda {

struct FreeDeviceMemory {
  void operator()(std::byte* data) const { cudaFree(data); }
};
using DeviceMemory = std::unique_ptr<std::byte, FreeDeviceMemory>;

struct FreePinnedMemory {
  void operator()(std::byte* data) const { cudaFreeHost(data); }
};
// Host memory that the device accesses directly.
using PinnedMemory = std::unique_ptr<std::byte, FreePinnedMemory>;

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;

inline cudaError_t Allocate(size_t bytes, DeviceMemory& into) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  into.reset(static_cast<std::byte*>(data));
  return error;
}
inline cudaError_t Allocate(size_t bytes, PinnedMemory& into) {
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  into.reset(static_cast<std::byte*>(data));
  return error;
}
inline cudaError_t Create(Stream& into) {
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  into.reset(stream);
  return error;
}

}  // namespace sis::cuda
