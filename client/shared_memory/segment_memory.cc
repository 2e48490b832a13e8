#include "client/shared_memory/segment_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "client/shared_memory/mapped_segments.h"

namespace sis {
namespace {

constexpr size_t kStep = MappedSegments::kAlignment;

// The next multiple; there is room for it, as sizes of memory are far from the largest number.
size_t RoundUp(size_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

}  // namespace

absl::StatusOr<std::shared_ptr<SegmentMemory>> SegmentMemory::Map(const std::string& object,
                                                                  size_t bytes) {
  const auto failed = [&](absl::string_view call) {
    return absl::FailedPreconditionError(
        absl::StrCat(call, " of the server's ", object, ": ", std::strerror(errno),
                     "; do server and client have the same /dev/shm?"));
  };
  const int file = shm_open(object.c_str(), O_RDWR, 0);
  if (file < 0) return failed("shm_open");
  // The pages are there: mapping them all now spares the first pass a fault for each.
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  close(file);
  if (memory == MAP_FAILED) return failed("mmap");
  shm_unlink(object.c_str());
  return std::make_shared<SegmentMemory>(std::span(static_cast<std::byte*>(memory), bytes));
}

SegmentMemory::SegmentMemory(std::span<std::byte> mapping) : memory_(mapping) {
  if (const size_t whole = mapping.size() / kStep * kStep; whole > 0) free_[0] = whole;
}

SegmentMemory::~SegmentMemory() { munmap(memory_.data(), memory_.size()); }

std::unique_ptr<SegmentAllocation> SegmentMemory::Take(size_t bytes) {
  if (bytes > memory_.size()) return nullptr;
  bytes = RoundUp(std::max<size_t>(bytes, 1));
  const std::lock_guard lock(mutex_);
  const auto free = std::ranges::find_if(
      free_, [bytes](const auto& part) { return part.second - part.first >= bytes; });
  return free == free_.end() ? nullptr : Cut(free, bytes);
}

std::unique_ptr<SegmentAllocation> SegmentMemory::TakeLargest() {
  const std::lock_guard lock(mutex_);
  const auto size = [](const auto& part) { return part.second - part.first; };
  const auto largest = std::ranges::max_element(free_, {}, size);
  return largest == free_.end() ? nullptr : Cut(largest, size(*largest));
}

std::unique_ptr<SegmentAllocation> SegmentMemory::Cut(std::map<size_t, size_t>::iterator free,
                                                      size_t bytes) {
  const auto [begin, end] = *free;
  free_.erase(free);
  if (begin + bytes < end) free_[begin + bytes] = end;
  return absl::WrapUnique(new SegmentAllocation(shared_from_this(), begin, begin + bytes));
}

void SegmentMemory::GiveBack(size_t begin, size_t end) {
  if (begin == end) return;
  const std::lock_guard lock(mutex_);
  const auto after = free_.upper_bound(begin);
  if (after != free_.end() && after->first == end) {
    end = after->second;
    free_.erase(after);
  }
  if (const auto next = free_.upper_bound(begin); next != free_.begin()) {
    if (const auto before = std::prev(next); before->second == begin) {
      before->second = end;
      return;
    }
  }
  free_[begin] = end;
}

SegmentAllocation::SegmentAllocation(std::shared_ptr<SegmentMemory> memory, size_t begin,
                                     size_t end)
    : memory_(std::move(memory)), begin_(begin), end_(end) {}

SegmentAllocation::~SegmentAllocation() { memory_->GiveBack(begin_, end_); }

std::span<std::byte> SegmentAllocation::bytes() const {
  return memory_->bytes().subspan(begin_, end_ - begin_);
}

void SegmentAllocation::Shrink(size_t bytes) {
  const size_t end = std::min(begin_ + RoundUp(bytes), end_);
  memory_->GiveBack(end, std::exchange(end_, end));
}

void SegmentAllocation::Abandon() { end_ = begin_; }

}  // namespace sis
