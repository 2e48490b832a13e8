#include "server/memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<std::unique_ptr<Arena>> Arena::Map(int64_t bytes) {
  const size_t chunks = static_cast<size_t>(bytes) / kChunkBytes;
  if (chunks == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes are less than one chunk of ", kChunkBytes));
  }
  void* memory = mmap(nullptr, chunks * kChunkBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", chunks * kChunkBytes, " bytes: ", std::strerror(errno)));
  }
  // Evaluate streams through it: fewer misses of the address cache. A wish, not a need.
  madvise(memory, chunks * kChunkBytes, MADV_HUGEPAGE);
  return std::unique_ptr<Arena>(new Arena(static_cast<std::byte*>(memory), chunks));
}

Arena::Arena(std::byte* memory, size_t chunks) : memory_(memory), chunks_(chunks) {
  // The lowest is taken first.
  for (size_t chunk = chunks; chunk > 0; --chunk) {
    unused_chunks_.push_back(static_cast<uint32_t>(chunk - 1));
  }
}

Arena::~Arena() { munmap(memory_, chunks_.size() * kChunkBytes); }

void Arena::Populate() {
  constexpr size_t kSmallestPage = 4096;
  WriterLock lock(mutex_);
  const size_t size = chunks_.size() * kChunkBytes;
#ifdef MADV_POPULATE_WRITE
  if (madvise(memory_, size, MADV_POPULATE_WRITE) == 0) return;
#endif
  for (size_t offset = 0; offset < size; offset += kSmallestPage) {
    static_cast<volatile std::byte*>(memory_)[offset] = std::byte{0};
  }
}

void Arena::Link(uint32_t chunk) {
  const auto [first, added] = with_room_.try_emplace(chunks_[chunk].block_bytes, kNone);
  chunks_[chunk].previous = kNone;
  chunks_[chunk].next = first->second;
  if (first->second != kNone) chunks_[first->second].previous = chunk;
  first->second = chunk;
}

void Arena::Unlink(uint32_t chunk) {
  const Chunk& gone = chunks_[chunk];
  if (gone.next != kNone) chunks_[gone.next].previous = gone.previous;
  if (gone.previous != kNone) {
    chunks_[gone.previous].next = gone.next;
  } else if (gone.next != kNone) {
    with_room_[gone.block_bytes] = gone.next;
  } else {
    with_room_.erase(gone.block_bytes);
  }
}

Arena::Block Arena::Allocate(size_t bytes) {
  const size_t block_bytes = BlockBytes(bytes);
  WriterLock lock(mutex_);
  uint32_t number;
  if (const auto found = with_room_.find(block_bytes); found != with_room_.end()) {
    number = found->second;
  } else {
    if (unused_chunks_.empty()) return {};
    number = unused_chunks_.back();
    unused_chunks_.pop_back();
    chunks_[number] = {.block_bytes = block_bytes};
    Link(number);
  }
  Chunk& chunk = chunks_[number];
  std::byte* block = chunk.free;
  if (block != nullptr) {
    std::memcpy(&chunk.free, block, sizeof chunk.free);
  } else {
    block = memory_ + number * kChunkBytes + chunk.touched_bytes;
    chunk.touched_bytes += block_bytes;
  }
  ++chunk.used_blocks;
  used_bytes_.fetch_add(static_cast<int64_t>(block_bytes), std::memory_order_relaxed);
  if (chunk.full()) Unlink(number);
  return Block(this, {block, bytes});
}

void Arena::Free(std::byte* block) {
  WriterLock lock(mutex_);
  const auto number = static_cast<uint32_t>((block - memory_) / kChunkBytes);
  Chunk& chunk = chunks_[number];
  const bool was_full = chunk.full();
  std::memcpy(block, &chunk.free, sizeof chunk.free);
  chunk.free = block;
  used_bytes_.fetch_sub(static_cast<int64_t>(chunk.block_bytes), std::memory_order_relaxed);
  if (--chunk.used_blocks > 0) {
    if (was_full) Link(number);
    return;
  }
  if (!was_full) Unlink(number);
  unused_chunks_.push_back(number);
  FillAside();
}

void Arena::FillAside() {
  while (aside_.size() < wanted_aside_ && !unused_chunks_.empty()) {
    aside_.push_back(unused_chunks_.back());
    unused_chunks_.pop_back();
    madvise(memory_ + aside_.back() * kChunkBytes, kChunkBytes, MADV_DONTNEED);
  }
}

void Arena::SetAside(int64_t bytes) {
  WriterLock lock(mutex_);
  wanted_aside_ =
      (static_cast<size_t>(std::max<int64_t>(bytes, 0)) + kChunkBytes - 1) / kChunkBytes;
  for (; aside_.size() > wanted_aside_; aside_.pop_back()) unused_chunks_.push_back(aside_.back());
  FillAside();
}

}  // namespace sis
