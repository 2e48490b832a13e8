// Random valid records and current values for tests.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/block/record_view.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

struct RecordedBlock;

// T recorded positions of K slots, with their arrays.
struct Records {
  int slots;
  std::vector<int32_t> sampled_ids = {};      // [T]
  std::vector<float> sampled_log_probs = {};  // [T]
  std::vector<int32_t> ids = {};              // [T, K]
  std::vector<float> log_probs = {};          // [T, K]
  std::vector<uint8_t> ranks = {};            // [T]

  uint32_t size() const { return static_cast<uint32_t>(sampled_ids.size()); }
  RecordView View() const { return View(0, size()); }
  RecordView View(uint32_t first, uint32_t count) const;
  // Returns positions [first, first + count) as positions of the sequence from first_position on.
  RecordedBlock Block(const std::string& sequence, uint32_t first_position, uint64_t policy_version,
                      uint32_t first, uint32_t count) const;
  // Returns all positions, as positions of the sequence from 0 on.
  RecordedBlock Block(const std::string& sequence, uint64_t policy_version = 0) const;
};

// Consecutive positions of a sequence.
struct RecordedBlock {
  std::string sequence;
  uint32_t first_position;
  uint64_t policy_version;
  Records records;

  // Returns the entry that a worker of a run with this config sends.
  v1::AppendEntry Entry(const v1::RunConfig& config) const;
};

// The current policy's values at T recorded positions. Unused slots hold NaN.
struct CurrentValues {
  int slots;
  std::vector<float> log_probs = {};          // [T, K]
  std::vector<float> sampled_log_probs = {};  // [T]

  v1::Gathered Gathered(uint32_t first, uint32_t count) const;
  // Returns the values reduced over the first top_k slots, by kernels/decide/decide.h.
  v1::Reduced Reduced(const Records& records, int top_k, uint32_t first, uint32_t count) const;
};

// Generates records with full, partly used and empty sets, and sampled tokens inside and outside.
class RecordGenerator {
 public:
  RecordGenerator(int slots, int32_t vocabulary_size, uint32_t seed)
      : slots_(slots), vocabulary_size_(vocabulary_size), random_(seed) {}

  Records NextRecords(uint32_t count);
  CurrentValues NextCurrent(const Records& records);
  // Returns a number in [low, high].
  uint32_t Uniform(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random_);
  }

 private:
  // Returns log-probs of `count` tokens that leave some probability to others.
  std::vector<float> LogProbs(size_t count);

  const int slots_;
  const int32_t vocabulary_size_;
  std::mt19937 random_;
};

}  // namespace sis
