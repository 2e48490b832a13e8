#include "tests/bench/ingest_messages.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/block/pack.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

constexpr int kDistinctPositions = 2048;

// Records with full sets; the sampled token is one of them, or not.
class Recorded {
 public:
  explicit Recorded(int top_k) : top_k_(top_k) {
    std::mt19937 random(1);
    std::exponential_distribution<double> weight;
    std::vector<double> weights(top_k);
    for (int position = 0; position < kDistinctPositions; ++position) {
      double sum = weight(random);
      for (double& w : weights) sum += w = std::pow(weight(random), 3);
      std::sort(weights.begin(), weights.end(), std::greater<>());
      const auto first_id = static_cast<int32_t>(random() % 1000);
      for (int slot = 0; slot < top_k; ++slot) {
        ids_.push_back(first_id + 1000 * slot);
        log_probs_.push_back(static_cast<float>(std::log(weights[slot] / sum)));
      }
      const int rank = std::min<int>(random() % 4, top_k - 1);
      sampled_ids_.push_back(ids_[position * top_k + rank]);
      sampled_log_probs_.push_back(log_probs_[position * top_k + rank]);
    }
  }

  // A block of any records, but the same for the same position.
  std::string Block(uint32_t first_position, int count) const {
    const size_t from = first_position % (kDistinctPositions - count + 1);
    const auto part = [&](const auto& array, size_t width) {
      return std::span(array).subspan(from * width, count * width);
    };
    const std::vector<std::byte> block = *PackBlock(
        {.sampled_ids = part(sampled_ids_, 1),
         .sampled_log_probs = part(sampled_log_probs_, 1),
         .ids = part(ids_, top_k_),
         .log_probs = part(log_probs_, top_k_)},
        {.slots = top_k_, .vocabulary_size = kVocabulary, .first_position = first_position});
    return {reinterpret_cast<const char*>(block.data()), block.size()};
  }

 private:
  const int top_k_;
  std::vector<int32_t> sampled_ids_, ids_;
  std::vector<float> sampled_log_probs_, log_probs_;
};

std::string SetCommand(const std::string& key, const std::string& block) {
  return absl::StrCat("*3\r\n$3\r\nSET\r\n$", key.size(), "\r\n", key, "\r\n$", block.size(),
                      "\r\n", block, "\r\n");
}

}  // namespace

void Fail(const std::string& what) {
  std::fprintf(stderr, "ingest: %s\n", what.c_str());
  std::exit(1);
}

std::vector<Messages> MakeMessages(const Case& c, int megabytes) {
  const Recorded recorded(c.top_k);
  std::vector<Messages> streams(c.streams);
  for (int stream = 0; stream < c.streams; ++stream) {
    for (int batch = 0; batch < c.batches(megabytes); ++batch) {
      v1::AppendRequest request;
      std::string set;
      for (int sequence = 0; sequence < c.sequences(); ++sequence) {
        const std::string id = absl::StrCat("prompt-", stream, "/response-", sequence);
        const auto first = static_cast<uint32_t>(batch * c.block_tokens);
        const std::string block = recorded.Block(first, c.block_tokens);
        set += SetCommand(absl::StrCat(id, "/", first), block);
        v1::AppendEntry& entry = *request.mutable_batch()->add_entries();
        entry.mutable_sequence()->set_id(id);
        entry.set_block(block);
      }
      streams[stream].sis.push_back(request.SerializeAsString());
      streams[stream].set.push_back(std::move(set));
    }
  }
  return streams;
}

}  // namespace sis
