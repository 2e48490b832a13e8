#include "server/evaluate/observed_correction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/decide/algorithms/parameter.h"
#include "kernels/numerics/log64.h"
#include "server/evaluate/parse_algorithm.h"

namespace sis {
namespace {

constexpr size_t kMaxNameBytes = 64;

absl::Status CheckName(const std::string& name) {
  const bool plain = std::ranges::all_of(name, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return absl::ascii_islower(byte) || absl::ascii_isdigit(byte) || c == '_';
  });
  if (name.empty() || name.size() > kMaxNameBytes || !plain) {
    return absl::InvalidArgumentError(
        absl::StrCat("name: is not 1 to ", kMaxNameBytes, " bytes of [a-z0-9_]"));
  }
  for (const absl::string_view taken : {"plain", "clipped", "applied"}) {
    if (name == taken) {
      return absl::InvalidArgumentError(absl::StrCat("name: '", taken, "' is always counted"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ObservedSis> ParseSis(const v1::ObservedCorrection::Sis& sis,
                                     const ObservingRequest& with) {
  if (sis.top_k() > static_cast<uint32_t>(with.top_k)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sis.top_k: ", sis.top_k(), ", above the request's ", with.top_k));
  }
  const int top_k = sis.top_k() == 0 ? with.top_k : static_cast<int>(sis.top_k());
  if (top_k < with.top_k && !with.has_every_slot) {
    return absl::InvalidArgumentError(
        absl::StrCat("sis.top_k: ", top_k, " of ", with.top_k,
                     " needs log-probs at every slot, which this form does not have"));
  }
  if (!v1::Weight_IsValid(sis.weight())) {
    return absl::InvalidArgumentError(
        absl::StrCat("sis.weight: ", static_cast<int>(sis.weight()), " is not a weight"));
  }
  return ObservedSis{top_k, WeightOf(sis.weight())};
}

absl::StatusOr<Algorithm> ParseObservedAlgorithm(const v1::Algorithm& message,
                                                 const ObservingRequest& with) {
  absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(message);
  if (!algorithm.ok()) return algorithm;
  const std::string name(AlgorithmName(*algorithm));
  if (std::holds_alternative<ClipCov>(*algorithm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm: ", name,
                     " can't be observed: which tokens it drops depends on all tokens of the "
                     "batch, and each is counted when its sequence is decided"));
  }
  if (ReadsTotalVariations(*algorithm) && !with.has_every_slot) {
    return absl::InvalidArgumentError(absl::StrCat(
        "algorithm: ", name, " needs log-probs at every slot, which this form does not have"));
  }
  if (ReadsTotalVariations(*algorithm) && with.three_policies) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm: ", name, " can't be observed with three policies"));
  }
  if (ReadsAdvantages(*algorithm, with.three_policies) && !with.has_advantages) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm: ", name, " needs advantages, which are unset"));
  }
  return algorithm;
}

absl::StatusOr<SequenceMask> ParseMask(const v1::ObservedCorrection::SequenceMask& message) {
  SequenceMask mask{message.lower(), message.upper(), message.weight()};
  if (!(mask.lower >= 0 && mask.lower <= mask.upper && std::isfinite(mask.upper))) {
    return absl::InvalidArgumentError(absl::StrCat("sequence_mask: [", mask.lower, ", ", mask.upper,
                                                   "] is not within [0, infinity)"));
  }
  if (!v1::ObservedCorrection::SequenceWeight_IsValid(mask.weight)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence_mask.weight: ", static_cast<int>(mask.weight), " is not a weight"));
  }
  if (mask.weight == v1::ObservedCorrection::SEQUENCE_WEIGHT_UNSPECIFIED) {
    mask.weight = v1::ObservedCorrection::SEQUENCE_WEIGHT_RATIO;
  }
  return mask;
}

// Returns a text that differs from that of every other correction. Leaves out unknown fields, which
// may have any size.
template <typename Message>
std::string Definition(absl::string_view kind, Message parameters) {
  parameters.DiscardUnknownFields();
  return absl::StrCat(kind, " ", parameters.SerializeAsString());
}

// Parses the correction and its definition.
absl::StatusOr<ObservedCorrection> Parse(const v1::ObservedCorrection& message,
                                         const ObservingRequest& with) {
  if (absl::Status status = CheckName(message.name()); !status.ok()) return status;
  ObservedCorrection observed{.name = {message.name(), ""}, .correction = {}};
  switch (message.correction_case()) {
    case v1::ObservedCorrection::kSis: {
      absl::StatusOr<ObservedSis> sis = ParseSis(message.sis(), with);
      if (!sis.ok()) return sis.status();
      observed.correction = *sis;
      observed.name.definition =
          absl::StrCat("sis ", sis->top_k, " ", v1::Weight_Name(sis->weight));
      return observed;
    }
    case v1::ObservedCorrection::kAlgorithm: {
      absl::StatusOr<Algorithm> algorithm = ParseObservedAlgorithm(message.algorithm(), with);
      if (!algorithm.ok()) return algorithm.status();
      observed.correction = *std::move(algorithm);
      observed.name.definition = Definition("algorithm", message.algorithm());
      return observed;
    }
    case v1::ObservedCorrection::kSequenceMask: {
      absl::StatusOr<SequenceMask> mask = ParseMask(message.sequence_mask());
      if (!mask.ok()) return mask.status();
      observed.correction = *mask;
      v1::ObservedCorrection::SequenceMask parameters = message.sequence_mask();
      parameters.set_weight(mask->weight);  // the default may be named or not
      observed.name.definition = Definition("sequence_mask", std::move(parameters));
      return observed;
    }
    case v1::ObservedCorrection::kTokenMask: {
      const float distance = message.token_mask().max_distance();
      absl::Status status = CheckRange("token_mask.max_distance", distance, 0, 1);
      if (!status.ok()) return status;
      observed.correction = TokenMask{{.threshold = distance}};
      observed.name.definition = Definition("token_mask", message.token_mask());
      return observed;
    }
    case v1::ObservedCorrection::CORRECTION_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("correction: none is set");
}

CorrectionSums SumsOfWeights(const ScoredPositions& positions, const std::vector<float>& weights) {
  const std::vector<Decision> scored(weights.size(), Decision::kRejected);
  return SumsOf({.decisions = scored,
                 .log_ratios = positions.log_ratios,
                 .log_envelopes = {},
                 .covered_masses = {},
                 .acceptance_probabilities = {},
                 .advantages = positions.advantages},
                weights);
}

}  // namespace

bool SequenceMask::Keeps(int64_t log_ratio_sum, int64_t scored) const {
  if (scored == 0) return true;
  double measure = FromFixed(log_ratio_sum);
  if (weight != v1::ObservedCorrection::SEQUENCE_WEIGHT_PRODUCT) {
    measure /= static_cast<double>(scored);
  }
  const auto log = [](double bound) {
    return bound == 0 ? -std::numeric_limits<double>::infinity() : Log64(bound);
  };
  return measure >= log(lower) && measure <= log(upper);
}

LogRatioSum SumOfPolicyLogRatios(const ScoredPositions& positions) {
  const std::vector<float>& log_ratios =
      positions.policy_log_ratios.empty() ? positions.log_ratios : positions.policy_log_ratios;
  const std::vector<TokenState> states(log_ratios.size(), TokenState::kOffPolicy);
  return SumLogRatios(states, log_ratios);
}

CorrectionSums SumsOfGspo(const Gspo& gspo, const ScoredPositions& positions,
                          const LogRatioSum& slice) {
  const size_t count = positions.log_ratios.size();
  const std::vector<TokenState> states(count, TokenState::kOffPolicy);
  const SequenceRange part{.sequence_key = 0,
                           .first_position = 0,
                           .count = static_cast<uint32_t>(count),
                           .whole_sequence = slice};
  AlgorithmInput batch{.parts = {&part, 1},
                       .states = states,
                       .log_ratios = positions.log_ratios,
                       .advantages = positions.advantages};
  if (!positions.policy_log_ratios.empty()) {
    batch.log_ratios = positions.policy_log_ratios;
    batch.log_corrections = positions.log_ratios;
  }
  std::vector<float> coefficients(count);
  gspo.Apply(batch, {.coefficients = coefficients});
  return SumsOfWeights(positions, coefficients);
}

CorrectionSums SumsOfProduct(const ScoredPositions& positions, int64_t log_ratio_sum) {
  const float product = Exp32(Flush(static_cast<float>(FromFixed(log_ratio_sum))));
  return SumsOfWeights(positions, std::vector<float>(positions.log_ratios.size(), product));
}

const Gspo* ObservedGspo(const ObservedCorrection::Correction& correction) {
  const auto* algorithm = std::get_if<Algorithm>(&correction);
  return algorithm == nullptr ? nullptr : std::get_if<Gspo>(algorithm);
}

absl::StatusOr<std::vector<ObservedCorrection>> ParseObserved(const v1::EvaluateRequest& request,
                                                              const ObservingRequest& with) {
  if (static_cast<size_t>(request.observe_size()) > RunCounters::kMaxObserved) {
    return absl::InvalidArgumentError(absl::StrCat(
        "observe: ", request.observe_size(), " corrections, at most ", RunCounters::kMaxObserved));
  }
  std::vector<ObservedCorrection> observed;
  std::set<absl::string_view> names;
  for (const v1::ObservedCorrection& message : request.observe()) {
    absl::StatusOr<ObservedCorrection> correction = Parse(message, with);
    absl::Status status = correction.status();
    if (status.ok() && !names.insert(message.name()).second) {
      status = absl::InvalidArgumentError(absl::StrCat("name: '", message.name(), "' comes twice"));
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("observe[", observed.size(), "].", status.message()));
    }
    observed.push_back(*std::move(correction));
  }
  return observed;
}

}  // namespace sis
