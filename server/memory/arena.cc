#include "server/memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<std::unique_ptr<Arena>> Arena::Map(int64_t bytes) {
  const size_t slabs = static_cast<size_t>(bytes) / kSlabBytes;
  if (slabs == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes are less than one slab of ", kSlabBytes));
  }
  void* memory =
      mmap(nullptr, slabs * kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", slabs * kSlabBytes, " bytes: ", std::strerror(errno)));
  }
  // Evaluate streams through it: fewer misses of the address cache. A wish, not a need.
  madvise(memory, slabs * kSlabBytes, MADV_HUGEPAGE);
  return std::unique_ptr<Arena>(new Arena(static_cast<std::byte*>(memory), slabs));
}

Arena::Arena(std::byte* memory, size_t slabs) : memory_(memory), slabs_(slabs) {
  // The lowest is taken first.
  for (size_t slab = slabs; slab > 0; --slab) {
    unused_slabs_.push_back(static_cast<uint32_t>(slab - 1));
  }
}

Arena::~Arena() { munmap(memory_, slabs_.size() * kSlabBytes); }

void Arena::Populate() {
  constexpr size_t kSmallestPage = 4096;
  WriterLock lock(mutex_);
  const size_t size = slabs_.size() * kSlabBytes;
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory_, size, MADV_POPULATE_WRITE) == 0) return;
#endif
  for (size_t offset = 0; offset < size; offset += kSmallestPage) {
    static_cast<volatile std::byte*>(memory_)[offset] = std::byte{0};
  }
}

void Arena::Link(uint32_t slab) {
  const auto [first, added] = with_room_.try_emplace(slabs_[slab].cell_bytes, kNone);
  slabs_[slab].previous = kNone;
  slabs_[slab].next = first->second;
  if (first->second != kNone) slabs_[first->second].previous = slab;
  first->second = slab;
}

void Arena::Unlink(uint32_t slab) {
  const Slab& gone = slabs_[slab];
  if (gone.next != kNone) slabs_[gone.next].previous = gone.previous;
  if (gone.previous != kNone) {
    slabs_[gone.previous].next = gone.next;
  } else if (gone.next != kNone) {
    with_room_[gone.cell_bytes] = gone.next;
  } else {
    with_room_.erase(gone.cell_bytes);
  }
}

Arena::Allocation Arena::Allocate(size_t bytes) {
  const size_t cell_bytes = CellBytes(bytes);
  WriterLock lock(mutex_);
  uint32_t number;
  if (const auto found = with_room_.find(cell_bytes); found != with_room_.end()) {
    number = found->second;
  } else {
    if (unused_slabs_.empty()) return {};
    number = unused_slabs_.back();
    unused_slabs_.pop_back();
    slabs_[number] = {.cell_bytes = cell_bytes};
    Link(number);
  }
  Slab& slab = slabs_[number];
  std::byte* cell = slab.free;
  if (cell != nullptr) {
    std::memcpy(&slab.free, cell, sizeof slab.free);
  } else {
    cell = memory_ + number * kSlabBytes + slab.touched_bytes;
    slab.touched_bytes += cell_bytes;
  }
  ++slab.used_cells;
  used_bytes_.fetch_add(static_cast<int64_t>(cell_bytes), std::memory_order_relaxed);
  if (slab.full()) Unlink(number);
  return Allocation(this, {cell, bytes});
}

void Arena::Free(std::byte* cell) {
  WriterLock lock(mutex_);
  const auto number = static_cast<uint32_t>((cell - memory_) / kSlabBytes);
  Slab& slab = slabs_[number];
  const bool was_full = slab.full();
  std::memcpy(cell, &slab.free, sizeof slab.free);
  slab.free = cell;
  used_bytes_.fetch_sub(static_cast<int64_t>(slab.cell_bytes), std::memory_order_relaxed);
  if (--slab.used_cells > 0) {
    if (was_full) Link(number);
    return;
  }
  if (!was_full) Unlink(number);
  unused_slabs_.push_back(number);
  FillAside();
}

void Arena::FillAside() {
  while (aside_.size() < wanted_aside_ && !unused_slabs_.empty()) {
    aside_.push_back(unused_slabs_.back());
    unused_slabs_.pop_back();
    madvise(memory_ + aside_.back() * kSlabBytes, kSlabBytes, MADV_DONTNEED);
  }
}

void Arena::SetAside(int64_t bytes) {
  WriterLock lock(mutex_);
  wanted_aside_ = (static_cast<size_t>(std::max<int64_t>(bytes, 0)) + kSlabBytes - 1) / kSlabBytes;
  for (; aside_.size() > wanted_aside_; aside_.pop_back()) unused_slabs_.push_back(aside_.back());
  FillAside();
}

}  // namespace sis
