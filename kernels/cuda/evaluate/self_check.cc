#include "kernels/cuda/evaluate/self_check.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/block/block.h"
#include "kernels/block/pack.h"
#include "kernels/numerics/log_prob.h"

namespace sis::cuda {
namespace {

constexpr size_t kPositions = 300;
constexpr size_t kSlots = 6;
// The evaluated range, which begins and ends inside the block.
constexpr uint32_t kFirst = 5;
constexpr uint32_t kCount = 290;

// Sets of 0 to kSlots tokens; values of differing exponents and bits.
absl::StatusOr<std::vector<std::byte>> PackRecords(BlockEncoding encoding) {
  std::vector<int32_t> sampled_ids(kPositions);
  std::vector<float> sampled_log_probs(kPositions);
  std::vector<int32_t> ids(kPositions * kSlots, -1);
  std::vector<float> log_probs(kPositions * kSlots, kMinusInfinity);
  for (size_t i = 0; i < kPositions; ++i) {
    const size_t used = i * 5 % (kSlots + 1);
    float log_prob = -2.0f;
    for (size_t slot = 0; slot < used; ++slot) {
      log_prob -= static_cast<float>((i * 37 + slot * 101) % 997 + 1) / 331;
      log_probs[i * kSlots + slot] = log_prob;
      ids[i * kSlots + slot] = static_cast<int32_t>(kSlots - slot);
    }
    const size_t rank = i % (kSlots + 1);
    sampled_ids[i] = rank < used ? ids[i * kSlots + rank] : 0;
    sampled_log_probs[i] = rank < used ? log_probs[i * kSlots + rank] : -30.0f;
  }
  return PackBlock({sampled_ids, sampled_log_probs, ids, log_probs},
                   {.encoding = encoding, .slots = kSlots, .vocabulary_size = kSlots + 1});
}

struct Output {
  std::vector<Decision> decisions = std::vector<Decision>(kCount);
  std::vector<float> floats = std::vector<float>(6 * kCount);
  Sums sums;

  OutputView view() {
    const auto part = [this](size_t i) { return std::span(floats).subspan(i * kCount, kCount); };
    return {decisions, part(0), part(1), part(2), part(3), part(4), part(5)};
  }
  bool operator==(const Output& other) const {
    return decisions == other.decisions && sums == other.sums &&
           std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0;
  }
};

}  // namespace

absl::Status SelfCheck(const StagedBackend& backend, const Backend& reference) {
  for (const BlockEncoding encoding : {BlockEncoding::kFloat32, BlockEncoding::kFixed16}) {
    absl::StatusOr<std::vector<std::byte>> bytes = PackRecords(encoding);
    if (!bytes.ok()) return bytes.status();
    bytes->resize(bytes->size() + kBlockSlack);
    const absl::StatusOr<BlockView> block =
        OpenBlock(std::span(*bytes).first(bytes->size() - kBlockSlack), false);
    if (!block.ok()) return block.status();
    const BlockTag tag;
    const BlockRange without_tag(*block, kFirst, kCount);
    const BlockRange with_tag(*block, kFirst, kCount, &tag);

    std::vector<float> current(with_tag.used_slots);
    for (size_t i = 0; i < current.size(); ++i) {
      current[i] = -2.0f - static_cast<float>(i * 71 % 991) / 79;
    }
    std::vector<float> current_sampled(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      current_sampled[i] = with_tag.sampled_log_probs[i] - static_cast<float>(i % 64) / 77;
    }
    // A block with a tag is first copied to resident memory, then read there.
    for (const BlockRange& behavior : {without_tag, with_tag, with_tag}) {
      const EvaluateParameters parameters{.top_k = kSlots - 1, .draw = 1};
      Output expected;
      Output output;
      BackendRange range{.sequence_key = 0x0123456789abcdef,
                         .first_position = kFirst,
                         .behavior = behavior,
                         .current = {current_sampled, current, {}, {}},
                         .output = expected.view(),
                         .sums = &expected.sums};
      reference.Evaluate(parameters, {&range, 1});
      range.output = output.view();
      range.sums = &output.sums;
      absl::Status status = backend.TryEvaluate(parameters, {&range, 1});
      if (!status.ok()) return status;
      if (!(output == expected)) {
        return absl::InternalError("the device gives other bytes than the CPU");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace sis::cuda
