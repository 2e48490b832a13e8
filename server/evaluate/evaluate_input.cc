#include "server/evaluate/evaluate_input.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/evaluate/parse_algorithm.h"
#include "server/messages/arrays.h"

namespace sis {
namespace {

// Returns true if the form has the current policy's log-prob of every token of V_K.
bool HasEverySlot(const v1::EvaluateRequest& request) { return !request.has_reduced(); }

// Parses top_k, total_variation and prefix_curve. The last two need log-probs at every slot.
absl::Status ParseParameters(const v1::EvaluateRequest& request, int slots, EvaluateInput& input) {
  if (request.top_k() > static_cast<uint32_t>(slots)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k: ", request.top_k(), ", above the run's ", slots));
  }
  const int top_k = request.top_k() == 0 ? slots : static_cast<int>(request.top_k());
  if (request.total_variation() || !request.prefix_curve().empty()) {
    const absl::string_view field = request.total_variation() ? "total_variation" : "prefix_curve";
    if (!HasEverySlot(request)) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": needs log-probs at every slot, which this form does not have"));
    }
  }
  if (request.prefix_curve_size() > static_cast<int>(kMaxPrefixPoints)) {
    return absl::InvalidArgumentError(absl::StrCat("prefix_curve: ", request.prefix_curve_size(),
                                                   " points, at most ", kMaxPrefixPoints));
  }
  std::vector<int>& prefix_curve = input.prefix_curve;
  for (const uint32_t k : request.prefix_curve()) {
    const int last = prefix_curve.empty() ? 0 : prefix_curve.back();
    if (k > static_cast<uint32_t>(top_k) || static_cast<int>(k) <= last) {
      return absl::InvalidArgumentError(absl::StrCat("prefix_curve[", prefix_curve.size(), "]: ", k,
                                                     " is not in [", last + 1, ", ", top_k, "]"));
    }
    prefix_curve.push_back(static_cast<int>(k));
  }
  input.parameters = {.top_k = top_k,
                      .draw = request.draw(),
                      .total_variation = request.total_variation(),
                      .prefix_curve = prefix_curve};
  return absl::OkStatus();
}

// A request without outputs gets ACCEPT_BITS.
absl::Status ParseOutputs(const v1::EvaluateRequest& request, EvaluateInput& input) {
  if (request.outputs().empty()) input.outputs = 1u << v1::OUTPUT_ACCEPT_BITS;
  for (const int output : request.outputs()) {
    if (!v1::Output_IsValid(output) || output == v1::OUTPUT_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrCat("outputs: ", output, " is not an output"));
    }
    input.outputs |= 1u << output;
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ViewOptional(absl::string_view name, const std::string& field, size_t count,
                          std::span<const T>& array) {
  return field.empty() ? absl::OkStatus() : ViewArray(name, field, count, array);
}

absl::Status CheckMask(std::span<const uint8_t> mask) {
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] <= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("mask: element ", i, ": ", mask[i], ", neither 0 nor 1"));
  }
  return absl::OkStatus();
}

absl::Status ParseSampledIds(const v1::EvaluateRequest& request, size_t count,
                             EvaluateInput& input) {
  const std::string& ids = request.sampled_ids();
  if (ids.empty()) return absl::OkStatus();
  const size_t width = ids.size() / count;
  if (ids.size() % count != 0 || width < 2 || width > 4) {
    return absl::InvalidArgumentError(absl::StrCat("sampled_ids: ", ids.size(), " bytes for ",
                                                   count,
                                                   " positions; must be 2, 3 or 4 bytes each"));
  }
  input.sampled_ids = {{reinterpret_cast<const uint8_t*>(ids.data()), ids.size()}, width};
  return absl::OkStatus();
}

absl::Status ParseWeight(const v1::EvaluateRequest& request, EvaluateInput& input) {
  static_assert(v1::Weight_MAX == v1::WEIGHT_EXPECTED);
  if (!v1::Weight_IsValid(request.weight())) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight: ", static_cast<int>(request.weight()), " is not a weight"));
  }
  input.weight = WeightOf(request.weight());
  return absl::OkStatus();
}

absl::Status CheckAdvantages(const EvaluateInput& input) {
  for (size_t i = 0; i < input.advantages.size(); ++i) {
    if (input.masked(i) || std::abs(input.advantages[i]) <= kNoUpperBound) continue;
    return absl::InvalidArgumentError(absl::StrCat("advantages: element ", i, ": ",
                                                   input.advantages[i], ", must be in [",
                                                   -kNoUpperBound, ", ", kNoUpperBound, "]"));
  }
  return absl::OkStatus();
}

absl::Status ParseDecoupled(const v1::EvaluateRequest& request, size_t count,
                            EvaluateInput& input) {
  if (!request.has_decoupled()) return absl::OkStatus();
  absl::Status status =
      ViewArray("decoupled.current_log_probs", request.decoupled().current_log_probs(), count,
                input.decoupled_log_probs);
  if (!status.ok()) return status;
  for (size_t i = 0; i < count; ++i) {
    if (input.masked(i)) continue;
    if (!(input.decoupled_log_probs[i] <= kRoundingSlack)) {
      return absl::InvalidArgumentError(absl::StrCat("decoupled.current_log_probs: element ", i,
                                                     ": ", input.decoupled_log_probs[i],
                                                     " is not a log-prob of at most 1/64"));
    }
    if (!input.sampled_log_probs.empty() && !std::isfinite(input.sampled_log_probs[i])) {
      return absl::InvalidArgumentError(absl::StrCat("sampled_log_probs: element ", i, ": ",
                                                     input.sampled_log_probs[i],
                                                     ", must be finite with three policies"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseAlgorithmOf(const v1::EvaluateRequest& request, EvaluateInput& input) {
  if (!request.has_algorithm()) {
    if (!input.wants_weights()) return absl::OkStatus();
    return absl::InvalidArgumentError("algorithm: unset, but SURROGATES or COEFFICIENTS wanted");
  }
  absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(request.algorithm());
  if (!algorithm.ok()) return algorithm.status();
  input.algorithm = *std::move(algorithm);
  if (!input.wants_weights() && !std::holds_alternative<Gspo>(*input.algorithm)) {
    return absl::InvalidArgumentError(
        "algorithm: set, but neither SURROGATES nor COEFFICIENTS wanted");
  }
  if (ReadsTotalVariations(*input.algorithm)) {
    const std::string name(AlgorithmName(*input.algorithm));
    if (!HasEverySlot(request)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "algorithm.", name, ": needs log-probs at every slot, which this form does not have"));
    }
    if (input.decoupled()) {
      return absl::InvalidArgumentError(
          absl::StrCat("algorithm.", name, ": not with three policies"));
    }
  }
  if (input.wants(v1::OUTPUT_COEFFICIENTS) && input.advantages.empty()) {
    return absl::InvalidArgumentError("advantages: unset, but COEFFICIENTS wanted");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EvaluateInput> ParseEvaluateInput(const v1::EvaluateRequest& request,
                                                 const RunConfig& config, size_t count) {
  EvaluateInput input;
  absl::Status status = ParseParameters(request, static_cast<int>(config.top_k), input);
  if (!status.ok()) return status;
  status = ParseOutputs(request, input);
  if (!status.ok()) return status;
  absl::StatusOr<CurrentArrays> current = CurrentArrays::Parse(request, count, config);
  if (!current.ok()) return current.status();
  input.current = *std::move(current);
  status = ViewOptional("mask", request.mask(), count, input.mask);
  status.Update(ViewOptional("own_log_probs", request.own_log_probs(), count, input.own_log_probs));
  status.Update(ViewOptional("advantages", request.advantages(), count, input.advantages));
  status.Update(ParseSampledIds(request, count, input));
  if (status.ok()) status = CheckMask(input.mask);
  if (request.has_decoupled() || request.has_algorithm()) {
    input.sampled_log_probs = input.current.sampled_log_probs();
  }
  if (status.ok()) status = ParseWeight(request, input);
  if (status.ok()) status = ParseDecoupled(request, count, input);
  if (status.ok()) status = ParseAlgorithmOf(request, input);
  if (status.ok()) status = CheckAdvantages(input);
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<ObservedCorrection>> observe =
      ParseObserved(request, {.top_k = input.parameters.top_k,
                              .has_every_slot = HasEverySlot(request),
                              .has_advantages = !input.advantages.empty(),
                              .three_policies = input.decoupled()});
  if (!observe.ok()) return observe.status();
  input.observe = *std::move(observe);
  return input;
}

}  // namespace sis
