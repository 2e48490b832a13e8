#include "server/main/heap.h"

#include <malloc.h>

#include <algorithm>
#include <thread>

namespace sis {
namespace {

constexpr int kNotAtOnce = 1 << 30;

}  // namespace

void ConfigureHeap() {
  // Large messages come and go: without this every one of them is mapped, faulted in and unmapped
  // again.
  mallopt(M_MMAP_THRESHOLD, kNotAtOnce);
  mallopt(M_TRIM_THRESHOLD, kNotAtOnce);
  // What one thread allocates another frees here. By default there are eight arenas per core, and
  // each keeps what its own most crowded moment took. Fewer than one per core make threads wait for
  // each other: one for two cores took a sixth of what blocks of 1024 tokens give
  // (docs/performance_ingest.md).
  mallopt(M_ARENA_MAX, std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

void GiveBackHeap() { malloc_trim(0); }

}  // namespace sis
