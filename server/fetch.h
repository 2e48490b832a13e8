// FetchTopK: the recorded sets back to the trainer, chunk by chunk.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/missing.h"
#include "server/run.h"
#include "server/slices.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The messages of one FetchTopK, made one after the other. Used by one thread at a time; keeps its
// sequences in memory while it lives.
class Fetch {
 public:
  // Checks the request, and takes the lease if one is asked for.
  static absl::StatusOr<Fetch> Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request);

  // Writes the next message; false if there is none left. The header is first.
  bool Next(v1::FetchTopKResponse& message);

 private:
  Fetch(std::shared_ptr<Run> run, std::vector<SliceRange> slices, uint64_t lease_id);

  // What the header says of a slice.
  struct Summary {
    uint64_t digest;
    std::vector<Missing> missing;
  };
  Summary Summarize(const SliceRange& slice) const;
  void WriteHeader(v1::FetchTopKHeader& header) const;
  void WriteChunk(v1::FetchTopKChunk& chunk) const;

  std::shared_ptr<Run> run_;
  std::vector<SliceRange> slices_;
  uint64_t lease_id_;
  uint64_t oldest_fresh_version_;  // as of the start: header and chunks agree on what is stale
  uint32_t rows_per_chunk_;
  bool header_written_ = false;
  // Where the next chunk starts.
  size_t slice_ = 0;
  uint32_t row_ = 0;
};

}  // namespace sis
