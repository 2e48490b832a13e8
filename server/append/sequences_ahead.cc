#include "server/append/sequences_ahead.h"

#include <algorithm>
#include <span>

namespace sis {

void SequencesAhead::Prepare(Run& run, const v1::AppendBatch& batch, int next) {
  if (begin_ < end_) return;
  std::array<SequenceNameView, kFound> names;
  begin_ = 0;
  end_ = std::min(static_cast<size_t>(batch.entries_size() - next), kFound);
  for (size_t i = 0; i < end_; ++i) names[i] = NameIn(batch.entries(next + static_cast<int>(i)));
  run.FindToAppend(std::span(names).first(end_), std::span(found_).first(end_));
}

void SequencesAhead::Advance() {
  if (begin_ < end_) found_[begin_++].reset();
}

void SequencesAhead::Forget() {
  while (begin_ < end_) Advance();
}

}  // namespace sis
