// Sequences that look like an LLM's, in every layout, far larger than the caches.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/decide/backend.h"

namespace sis {

// Pages of the operating system, huge ones where it has them: unlike small ones they don't limit
// what a core reads.
template <typename T>
class HugeArray {
 public:
  explicit HugeArray(size_t size)
      : size_(size),
        data_(static_cast<T*>(
            mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    madvise(data_, bytes(), MADV_HUGEPAGE);
  }
  HugeArray(HugeArray&& other) noexcept : size_(other.size_), data_(other.data_) {
    other.data_ = nullptr;
  }
  HugeArray& operator=(HugeArray&&) = delete;
  ~HugeArray() {
    if (data_ != nullptr) munmap(data_, bytes());
  }
  std::span<T> span() const { return {data_, size_}; }

 private:
  size_t bytes() const { return (size_ * sizeof(T) + 8191) / 4096 * 4096; }

  size_t size_;
  T* data_;
};

// The blocks' encoding, and what a trainer sends: log-probs of all slots in float32, or three
// values a position.
enum class Layout { kFloat32, kFixed16, kReduced };

class Workload {
 public:
  // Positions of a sequence, all in one block.
  static constexpr size_t kSequencePositions = 512;

  // Whole sequences, about total_bytes of them.
  Workload(int slots, Layout layout, size_t total_bytes);

  size_t positions() const { return decisions_.span().size(); }
  // Returns the bytes that an evaluation reads, and of the decision that it writes, per position.
  double BytesPerPosition() const { return bytes_per_position_; }
  // One range a sequence; the outputs are decisions alone.
  std::span<const BackendRange> ranges() const { return ranges_; }

 private:
  const size_t block_stride_;
  const size_t sequences_;
  double bytes_per_position_;
  HugeArray<std::byte> blocks_;
  HugeArray<float> log_probs_;
  HugeArray<float> sampled_log_probs_;
  HugeArray<float> log_envelopes_;
  HugeArray<float> covered_masses_;
  HugeArray<Decision> decisions_;
  Sums sums_;
  std::vector<BackendRange> ranges_;
};

}  // namespace sis
