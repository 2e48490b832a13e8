#include "server/gathered_values.h"

#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/codec/float16.h"
#include "server/arrays.h"

namespace sis {
namespace {

float Decode(float value) { return value; }
struct BFloat16 {
  uint16_t bits;
};
float Decode(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

absl::Status ParseLogProbs(const v1::Gathered& gathered, size_t count, size_t slots,
                           CurrentView& current) {
  const auto log_probs = ArrayOf<float>("gathered.log_probs", gathered.log_probs(), count * slots);
  if (!log_probs.ok()) return log_probs.status();
  const auto sampled =
      ArrayOf<float>("gathered.sampled_log_probs", gathered.sampled_log_probs(), count);
  if (!sampled.ok()) return sampled.status();
  current.log_probs = *log_probs;
  current.sampled_log_probs = *sampled;
  return absl::OkStatus();
}

absl::Status ParseFloat16(const v1::Gathered& gathered, size_t count, size_t slots,
                          EvaluateInput& input) {
  const auto halves = ArrayOf<uint16_t>("gathered.log_probs", gathered.log_probs(), count * slots);
  if (!halves.ok()) return halves.status();
  const auto sampled =
      ArrayOf<float>("gathered.sampled_log_probs", gathered.sampled_log_probs(), count);
  if (!sampled.ok()) return sampled.status();
  auto log_probs = std::make_shared<std::vector<float>>(count * slots);
  for (size_t i = 0; i < log_probs->size(); ++i) (*log_probs)[i] = DecodeFloat16((*halves)[i]);
  input.current.log_probs = *log_probs;
  input.current.sampled_log_probs = *sampled;
  input.converted = std::move(log_probs);
  return absl::OkStatus();
}

// A NaN logit gives NaN, which validation finds; so does an infinite one.
template <typename Logit>
absl::Status ParseLogits(const v1::Gathered& gathered, size_t count, size_t slots,
                         EvaluateInput& input) {
  const auto logits = ArrayOf<Logit>("gathered.log_probs", gathered.log_probs(), count * slots);
  if (!logits.ok()) return logits.status();
  const auto sampled =
      ArrayOf<Logit>("gathered.sampled_log_probs", gathered.sampled_log_probs(), count);
  if (!sampled.ok()) return sampled.status();
  const auto log_sum_exps =
      ArrayOf<double>("gathered.log_sum_exps", gathered.log_sum_exps(), count);
  if (!log_sum_exps.ok()) return log_sum_exps.status();

  auto values = std::make_shared<std::vector<float>>(count * (slots + 1));
  for (size_t i = 0; i < count; ++i) {
    const double log_sum_exp = (*log_sum_exps)[i];
    if (!std::isfinite(log_sum_exp) && !input.masked(i)) {
      return absl::InvalidArgumentError(absl::StrCat("gathered.log_sum_exps: element ", i, ": ",
                                                     log_sum_exp, ", must be finite"));
    }
    const auto log_prob = [log_sum_exp](Logit logit) {
      return Flush(static_cast<float>(static_cast<double>(Decode(logit)) - log_sum_exp));
    };
    for (size_t slot = 0; slot < slots; ++slot) {
      (*values)[i * slots + slot] = log_prob((*logits)[i * slots + slot]);
    }
    (*values)[count * slots + i] = log_prob((*sampled)[i]);
  }
  input.current.log_probs = std::span(*values).first(count * slots);
  input.current.sampled_log_probs = std::span(*values).last(count);
  input.converted = std::move(values);
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseGathered(const v1::Gathered& gathered, size_t count, EvaluateInput& input) {
  const auto slots = static_cast<size_t>(input.parameters.slots);
  const bool logits = gathered.values() == v1::Gathered::LOGITS ||
                      gathered.values() == v1::Gathered::BFLOAT16_LOGITS;
  if (!logits && !gathered.log_sum_exps().empty()) {
    return absl::InvalidArgumentError("gathered.log_sum_exps: set, but the values are log-probs");
  }
  switch (gathered.values()) {
    case v1::Gathered::LOG_PROBS:
      return ParseLogProbs(gathered, count, slots, input.current);
    case v1::Gathered::FLOAT16_LOG_PROBS:
      return ParseFloat16(gathered, count, slots, input);
    case v1::Gathered::LOGITS:
      return ParseLogits<float>(gathered, count, slots, input);
    case v1::Gathered::BFLOAT16_LOGITS:
      return ParseLogits<BFloat16>(gathered, count, slots, input);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "gathered.values: ", static_cast<int>(gathered.values()), " is not one of them"));
  }
}

}  // namespace sis
