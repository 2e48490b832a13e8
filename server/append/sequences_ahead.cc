#include "server/append/sequences_ahead.h"

#include <algorithm>

namespace sis {
namespace {

// Asks the processor for the memory of an object.
template <typename T>
void Prefetch(const T& object) {
  constexpr size_t kLine = 64;
  for (size_t byte = 0; byte < sizeof(T); byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(&object) + byte, 1);
  }
}

}  // namespace

void SequencesAhead::Prepare(Run& run, std::span<const AppendEntryView> entries) {
  if (begin_ == end_) {
    std::array<SequenceNameView, kFound> names;
    begin_ = 0;
    end_ = std::min(entries.size(), kFound);
    for (size_t i = 0; i < end_; ++i) names[i] = NameIn(entries[i]);
    run.FindToAppend(std::span(names).first(end_), std::span(found_).first(end_));
    for (size_t i = 0; i < end_; ++i) {
      if (found_[i] != nullptr) Prefetch(*found_[i]);
    }
    for (size_t i = 0; i < kPrefetched; ++i) PrefetchEnd(i);
  }
  PrefetchEnd(begin_ + kPrefetched);
}

void SequencesAhead::PrefetchEnd(size_t index) const {
  if (index < end_ && found_[index] != nullptr) found_[index]->PrefetchEnd();
}

void SequencesAhead::Advance() {
  if (begin_ < end_) found_[begin_++].reset();
}

void SequencesAhead::Forget() {
  while (begin_ < end_) Advance();
}

}  // namespace sis
