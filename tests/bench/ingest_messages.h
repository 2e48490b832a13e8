// Messages of the ingest benchmark: the same blocks for sis_server and for redis-server.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace sis {

inline constexpr int kVocabulary = 151'936;
inline constexpr int kBatchesInFlight = 4;

// Ends the benchmark.
[[noreturn]] void Fail(const std::string& what);

struct Case {
  int top_k;
  int block_tokens;
  int streams;

  // A worker's sequences: an engine's running batch, less where workers are many or blocks large.
  int sequences() const {
    const int of_one = block_tokens == 1 ? 256 : block_tokens <= 32 ? 32 : 1;
    return std::min(of_one, std::max(1, 4096 / streams));
  }
  // In fixed16, without the block's header.
  int64_t bytes_per_token() const { return 5 * top_k + 10; }
  // Batches of each stream.
  int batches(int megabytes) const {
    const int64_t bytes = (int64_t{megabytes} << 20) / (block_tokens == 1 ? 8 : 1);
    const int64_t batch_bytes = bytes_per_token() * block_tokens * sequences();
    return static_cast<int>(std::max<int64_t>(kBatchesInFlight, bytes / batch_bytes / streams));
  }
  int64_t tokens(int megabytes) const {
    return int64_t{batches(megabytes)} * streams * sequences() * block_tokens;
  }
};

// One side's messages of a stream, and how many answers each gets.
struct Messages {
  std::vector<std::string> sis;  // AppendRequests
  std::vector<std::string> set;  // pipelines
};

// Returns the messages of all streams of a case.
std::vector<Messages> MakeMessages(const Case& c, int megabytes);

}  // namespace sis
