// FetchTopK: returns recorded blocks to the trainer, message by message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cache/run.h"
#include "server/messages/slices.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Makes the messages of one FetchTopK. Used by one thread at a time. Keeps its sequences in memory
// until their blocks are in a message.
class Fetch {
 public:
  // Checks the request, and keeps its sequences for `keep_seconds`.
  static absl::StatusOr<Fetch> Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request);

  // Writes the next message. Returns false if there is none left.
  bool Next(v1::FetchTopKResponse& message);

 private:
  Fetch(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
        std::vector<SliceRange> slices);

  // Adds blocks and missing ranges of the current slice until it ends or they have `space` bytes.
  // Returns how many bytes they have.
  size_t AddToSlice(size_t space, v1::FetchedSlice& message);
  void AddBlock(const CachedBlock& block, v1::FetchedSlice& message) const;

  std::shared_ptr<Run> run_;
  bool whole_blocks_;
  // The run's value when the call began, so that each position is stale or fresh to its end.
  uint64_t oldest_fresh_version_;
  std::vector<SliceRange> slices_;
  // The current slice, the number of its positions that were written, and their digest.
  size_t slice_ = 0;
  uint32_t written_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace sis
