#include <cuda_runtime.h>

#include "kernels/cuda/testing/shared_functions.h"

namespace sis::cuda {
namespace {

constexpr int kThreads = 256;

struct Exp32One {
  __device__ float operator()(float x) const { return sis::Exp32(x); }
};

struct DecideEach {
  __device__ DecideOutput operator()(const DecideInput& in) const { return DecideOne(in); }
};

struct Fixed16Each {
  __device__ float operator()(const CodeInput& in) const {
    return sis::Fixed16(in.code, in.multiplier);
  }
};

template <typename Function, typename In, typename Out>
__global__ void Map(Function function, const In* in, Out* out, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = function(in[i]);
}

// Device memory, freed by the destructor; null if the allocation failed.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) { error_ = cudaMalloc(&data_, count * sizeof(T)); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }
  cudaError_t error() const { return error_; }

 private:
  T* data_ = nullptr;
  cudaError_t error_;
};

template <typename Function, typename In, typename Out>
cudaError_t MapOnDevice(Function function, std::span<const In> in, std::span<Out> out) {
  DeviceArray<In> from(in.size());
  DeviceArray<Out> to(out.size());
  if (from.error() != cudaSuccess) return from.error();
  if (to.error() != cudaSuccess) return to.error();
  cudaError_t error = cudaMemcpy(from.data(), in.data(), in.size_bytes(), cudaMemcpyHostToDevice);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<unsigned>((in.size() + kThreads - 1) / kThreads);
  Map<<<blocks, kThreads>>>(function, from.data(), to.data(), in.size());
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return cudaMemcpy(out.data(), to.data(), out.size_bytes(), cudaMemcpyDeviceToHost);
}

std::string Describe(cudaError_t error) {
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

}  // namespace

bool HasDevice(std::string* why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  *why = error != cudaSuccess ? cudaGetErrorString(error) : count == 0 ? "no device" : "";
  return why->empty();
}

std::string Exp32(std::span<const float> x, std::span<float> y) {
  return Describe(MapOnDevice(Exp32One{}, x, y));
}

std::string Decide(std::span<const DecideInput> in, std::span<DecideOutput> out) {
  return Describe(MapOnDevice(DecideEach{}, in, out));
}

std::string Fixed16(std::span<const CodeInput> in, std::span<float> out) {
  return Describe(MapOnDevice(Fixed16Each{}, in, out));
}

}  // namespace sis::cuda
