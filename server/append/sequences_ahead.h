// Looks up the sequences of upcoming entries.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "server/cache/run.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

inline SequenceNameView NameIn(const v1::AppendEntry& entry) {
  return {entry.sequence().id(), entry.sequence().attempt()};
}

// Locks the run once for many sequences. The sequences found can't be evicted or removed. Used by
// one thread at a time.
class SequencesAhead {
 public:
  // Returns the sequence of the next entry; null if it is not known.
  const std::shared_ptr<Sequence>& next() const { return begin_ < end_ ? found_[begin_] : none_; }
  // Finds the sequences of the entries of `batch` from index `next` on.
  void Prepare(Run& run, const v1::AppendBatch& batch, int next);
  // Moves to the entry after the next.
  void Advance();
  void Forget();

 private:
  static constexpr size_t kFound = 32;

  std::shared_ptr<Sequence> none_;
  std::array<std::shared_ptr<Sequence>, kFound> found_;  // [begin_, end_) from the next entry on
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace sis
