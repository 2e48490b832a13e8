// How often memory was allocated. Replaces operator new: to be included once in a test's binary.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace sis {

inline std::atomic<int64_t> allocations = 0;

}  // namespace sis

void* operator new(size_t size) {
  ++sis::allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
// A sanitizer's own would not go with what frees here.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++sis::allocations;
  return std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
