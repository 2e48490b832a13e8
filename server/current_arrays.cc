#include "server/current_arrays.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/codec/float16.h"
#include "server/arrays.h"

namespace sis {
namespace {

struct BFloat16 {
  uint16_t bits;
};
float Decode(float value) { return value; }
float Decode(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Where the field lies. InvalidArgument unless it has `count` elements.
template <typename T>
absl::Status Take(absl::string_view name, const std::string& field, const ReceivedArrays& arrays,
                  size_t count, ArrayField& into) {
  into = arrays.Of(field);
  return CheckLength<T>(name, into.size(), count);
}

}  // namespace

absl::StatusOr<CurrentArrays> CurrentArrays::Parse(const v1::EvaluateRequest& request,
                                                   const ReceivedArrays& arrays, size_t count,
                                                   size_t slots) {
  CurrentArrays current;
  current.slots_ = slots;
  absl::Status status;
  switch (request.form_case()) {
    case v1::EvaluateRequest::kGathered:
      status = current.ParseGathered(request.gathered(), arrays, count);
      break;
    case v1::EvaluateRequest::kReduced: {
      const v1::Reduced& reduced = request.reduced();
      status = Take<float>("reduced.sampled_log_probs", reduced.sampled_log_probs(), arrays, count,
                           current.sampled_log_probs_);
      status.Update(Take<float>("reduced.log_envelopes", reduced.log_envelopes(), arrays, count,
                                current.log_envelopes_));
      status.Update(Take<float>("reduced.covered_masses", reduced.covered_masses(), arrays, count,
                                current.covered_masses_));
      break;
    }
    case v1::EvaluateRequest::FORM_NOT_SET:
      status = absl::InvalidArgumentError("form: neither gathered nor reduced");
  }
  if (!status.ok()) return status;
  return current;
}

CurrentView CurrentArrays::Read(size_t first, size_t count, Scratch& scratch) const {
  const auto part = [&](const ArrayField& array, const Floats& converted, size_t width,
                        std::vector<float>& into) {
    if (converted != nullptr) return std::span(*converted).subspan(first * width, count * width);
    return array.size() == 0 ? std::span<const float>()
                             : array.Read<float>(first * width, count * width, into);
  };
  return {.sampled_log_probs =
              part(sampled_log_probs_, converted_sampled_log_probs_, 1, scratch.sampled_log_probs),
          .log_probs = part(log_probs_, converted_log_probs_, slots_, scratch.log_probs),
          .log_envelopes = part(log_envelopes_, nullptr, 1, scratch.log_envelopes),
          .covered_masses = part(covered_masses_, nullptr, 1, scratch.covered_masses)};
}

std::span<const float> CurrentArrays::ReadSampled(size_t first, size_t count,
                                                  std::vector<float>& scratch) const {
  const Floats& converted = converted_sampled_log_probs_;
  if (converted != nullptr) return std::span(*converted).subspan(first, count);
  return sampled_log_probs_.Read<float>(first, count, scratch);
}

absl::Status CurrentArrays::ParseGathered(const v1::Gathered& gathered,
                                          const ReceivedArrays& arrays, size_t count) {
  const bool logits = gathered.values() == v1::Gathered::LOGITS ||
                      gathered.values() == v1::Gathered::BFLOAT16_LOGITS;
  if (!logits && arrays.Of(gathered.log_sum_exps()).size() != 0) {
    return absl::InvalidArgumentError("gathered.log_sum_exps: set, but the values are log-probs");
  }
  switch (gathered.values()) {
    case v1::Gathered::LOG_PROBS: {
      absl::Status status = Take<float>("gathered.log_probs", gathered.log_probs(), arrays,
                                        count * slots_, log_probs_);
      status.Update(Take<float>("gathered.sampled_log_probs", gathered.sampled_log_probs(), arrays,
                                count, sampled_log_probs_));
      return status;
    }
    case v1::Gathered::FLOAT16_LOG_PROBS:
      return ParseFloat16(gathered, arrays, count);
    case v1::Gathered::LOGITS:
      return ParseLogits<float>(gathered, arrays, count);
    case v1::Gathered::BFLOAT16_LOGITS:
      return ParseLogits<BFloat16>(gathered, arrays, count);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "gathered.values: ", static_cast<int>(gathered.values()), " is not one of them"));
  }
}

absl::Status CurrentArrays::ParseFloat16(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                                         size_t count) {
  ArrayField halves;
  absl::Status status =
      Take<uint16_t>("gathered.log_probs", gathered.log_probs(), arrays, count * slots_, halves);
  status.Update(Take<float>("gathered.sampled_log_probs", gathered.sampled_log_probs(), arrays,
                            count, sampled_log_probs_));
  if (!status.ok()) return status;
  std::vector<uint16_t> scratch;
  auto log_probs = std::make_shared<std::vector<float>>();
  log_probs->reserve(count * slots_);
  for (const uint16_t half : halves.Read<uint16_t>(0, count * slots_, scratch)) {
    log_probs->push_back(DecodeFloat16(half));
  }
  converted_log_probs_ = std::move(log_probs);
  return absl::OkStatus();
}

// A log-sum-exp that is not finite makes its position's log-probs NaN, as a NaN logit does, which
// is refused where the position is used.
template <typename Logit>
absl::Status CurrentArrays::ParseLogits(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                                        size_t count) {
  ArrayField logits, sampled_logits, log_sum_exps;
  absl::Status status =
      Take<Logit>("gathered.log_probs", gathered.log_probs(), arrays, count * slots_, logits);
  status.Update(Take<Logit>("gathered.sampled_log_probs", gathered.sampled_log_probs(), arrays,
                            count, sampled_logits));
  status.Update(
      Take<double>("gathered.log_sum_exps", gathered.log_sum_exps(), arrays, count, log_sum_exps));
  if (!status.ok()) return status;
  std::vector<Logit> logit_scratch, sampled_scratch;
  std::vector<double> sum_scratch;
  const std::span<const Logit> at_slots = logits.Read<Logit>(0, count * slots_, logit_scratch);
  const std::span<const Logit> sampled = sampled_logits.Read<Logit>(0, count, sampled_scratch);
  const std::span<const double> sums = log_sum_exps.Read<double>(0, count, sum_scratch);
  auto log_probs = std::make_shared<std::vector<float>>(count * slots_);
  auto sampled_log_probs = std::make_shared<std::vector<float>>(count);
  for (size_t i = 0; i < count; ++i) {
    const double sum = std::isfinite(sums[i]) ? sums[i] : std::numeric_limits<double>::quiet_NaN();
    const auto log_prob = [sum](Logit logit) {
      return Flush(static_cast<float>(static_cast<double>(Decode(logit)) - sum));
    };
    for (size_t slot = 0; slot < slots_; ++slot) {
      (*log_probs)[i * slots_ + slot] = log_prob(at_slots[i * slots_ + slot]);
    }
    (*sampled_log_probs)[i] = log_prob(sampled[i]);
  }
  converted_log_probs_ = std::move(log_probs);
  converted_sampled_log_probs_ = std::move(sampled_log_probs);
  return absl::OkStatus();
}

}  // namespace sis
