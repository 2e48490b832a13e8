#include "server/evaluate/part_statistics.h"

#include <algorithm>
#include <variant>

#include "kernels/decide/algorithms/expected_weight.h"
#include "server/messages/arrays.h"

namespace sis {
namespace {

void FillIn(std::span<float>& array, std::vector<float>& memory, size_t count) {
  if (array.empty()) array = Room(memory, count);
}

bool ObservesTotalVariations(const EvaluateInput& input) {
  return std::ranges::any_of(input.observe, [](const ObservedCorrection& observed) {
    const auto* algorithm = std::get_if<Algorithm>(&observed.correction);
    return algorithm != nullptr && ReadsTotalVariations(*algorithm);
  });
}

}  // namespace

PartStatistics::PartStatistics(const Backend& backend, const EvaluateInput& input)
    : backend_(backend),
      input_(input),
      needs_modified_ratios_(input.weight != v1::WEIGHT_SAMPLED),
      needs_total_variations_(ObservesTotalVariations(input)) {}

bool PartStatistics::DecidesAgain(const ObservedSis& sis) const {
  return sis.top_k != input_.parameters.top_k;
}

PositionOutput PartStatistics::Complete(PositionOutput output, size_t n) {
  OutputView& view = output.view;
  FillIn(view.acceptance_probabilities, acceptance_probabilities_, n);
  FillIn(view.log_ratios, log_ratios_, n);
  FillIn(view.log_envelopes, log_envelopes_, n);
  FillIn(view.covered_masses, covered_masses_, n);
  if (needs_modified_ratios_) {
    FillIn(view.log_modified_ratios, log_modified_ratios_, n);
    FillIn(view.modified_ratios, modified_ratios_, n);
  }
  if (needs_total_variations_) FillIn(output.total_variations, total_variations_, n);
  return output;
}

absl::Status PartStatistics::Add(const DecidedPart& part, RangeResult& into) {
  if (part.ranges.empty()) return absl::OkStatus();
  const OutputView& view = part.output.view;
  const size_t count = view.decisions.size();
  const DecidedPositions positions = {
      .decisions = view.decisions,
      .log_ratios = view.log_ratios,
      .log_envelopes = view.log_envelopes,
      .covered_masses = view.covered_masses,
      .acceptance_probabilities = view.acceptance_probabilities,
      .advantages = input_.advantages.empty() ? input_.advantages
                                              : input_.advantages.subspan(part.offset, count)};
  Statistics statistics;
  AddStatistics(positions, statistics);
  if (needs_modified_ratios_) {
    statistics.applied =
        SumsOf(positions, ModifiedRatios{view.modified_ratios, view.log_modified_ratios});
  }
  into.counted.statistics += statistics;
  AddByAge(part, statistics.applied, into.counted.ages);
  return input_.observe.empty() ? absl::OkStatus() : AddObserved(part, positions, into);
}

void PartStatistics::AddByAge(const DecidedPart& part, const CorrectionSums& applied,
                              SumsByAge& ages) const {
  for (size_t age = 0; age < ages.size(); ++age) {
    const Sums& sums = part.sums_by_age[age];
    if (sums.scored() == 0) continue;
    // Mostly the whole part has one age.
    CorrectionSums weights = applied;
    if (sums.scored() != part.sums.scored()) {
      weights = {};
      for (size_t i = 0; i < part.ranges.size(); ++i) {
        if (part.ages[i] == age) AddWeights(part, part.ranges[i], weights);
      }
    }
    ages[age] += {.accepted = sums.accepted,
                  .rejected = sums.rejected,
                  .outside_top_k = sums.outside_top_k,
                  .d = sums.d,
                  .d_sis = sums.d_sis,
                  .weight = weights.weight,
                  .weight_squared = weights.weight_squared};
  }
}

void PartStatistics::AddWeights(const DecidedPart& part, const BackendRange& range,
                                CorrectionSums& weights) const {
  const OutputView& view = part.output.view;
  const size_t first = range.first_position - part.first_position;
  for (size_t i = first; i < first + range.output.decisions.size(); ++i) {
    float weight = 1.0f;
    if (needs_modified_ratios_) {
      weight = view.modified_ratios[i];
    } else if (view.decisions[i] != Decision::kAccepted) {
      weight = Exp32(view.log_ratios[i]);
    }
    weights.Add(weight, weight, 0.0f, 0.0f);
  }
}

absl::Status PartStatistics::AddObserved(const DecidedPart& part, const DecidedPositions& positions,
                                         RangeResult& into) {
  bool any_mask = false;
  bool any_of_slices = false;
  for (size_t i = 0; i < input_.observe.size(); ++i) {
    const auto& correction = input_.observe[i].correction;
    if (const auto* sis = std::get_if<ObservedSis>(&correction)) {
      absl::Status status = AddSis(*sis, part, positions, into.observed[i]);
      if (!status.ok()) return status;
    } else if (ObservedGspo(correction) != nullptr) {
      any_of_slices = true;
    } else if (const auto* algorithm = std::get_if<Algorithm>(&correction)) {
      AddAlgorithm(*algorithm, &AlgorithmOutput::coefficients, part, positions, into.observed[i]);
    } else if (const auto* mask = std::get_if<TokenMask>(&correction)) {
      AddAlgorithm(mask->rule, &AlgorithmOutput::surrogates, part, positions, into.observed[i]);
    } else if (const auto* mask = std::get_if<SequenceMask>(&correction)) {
      any_mask = true;
      if (mask->weight == v1::ObservedCorrection::SEQUENCE_WEIGHT_PRODUCT) any_of_slices = true;
      if (mask->weight == v1::ObservedCorrection::SEQUENCE_WEIGHT_ONE) {
        AddAlgorithm(NoCorrection{}, &AlgorithmOutput::coefficients, part, positions,
                     into.observed[i]);
      }
    }
  }
  if (any_mask) into.log_ratio_sum += SumOfLogRatios(positions);
  if (any_of_slices) AddScored(part, positions, into.scored);
  return absl::OkStatus();
}

void PartStatistics::AddScored(const DecidedPart& part, const DecidedPositions& positions,
                               ScoredPositions& scored) {
  for (size_t i = 0; i < positions.decisions.size(); ++i) {
    if (!positions.scored(i)) continue;
    scored.log_ratios.push_back(positions.log_ratios[i]);
    scored.advantages.push_back(positions.advantage(i));
    if (!input_.decoupled()) continue;
    scored.policy_log_ratios.push_back(Flush(input_.decoupled_log_probs[part.offset + i] -
                                             input_.current.sampled_log_probs()[part.offset + i]));
  }
}

absl::Status PartStatistics::AddSis(const ObservedSis& sis, const DecidedPart& part,
                                    const DecidedPositions& positions, CorrectionSums& sums) {
  const size_t count = positions.decisions.size();
  std::span<const Decision> decisions = positions.decisions;
  std::span<const float> acceptance_probabilities = positions.acceptance_probabilities;
  if (DecidesAgain(sis)) {
    // Decides again, with the same uniforms.
    EvaluateParameters parameters = input_.parameters;
    parameters.top_k = sis.top_k;
    parameters.total_variation = false;
    parameters.prefix_curve = {};
    const OutputView output = {.decisions = Room(decisions_, count),
                               .acceptance_probabilities = Room(observed_probabilities_, count)};
    Sums decided;
    ranges_.assign(part.ranges.begin(), part.ranges.end());
    for (BackendRange& range : ranges_) {
      const size_t first = range.first_position - part.first_position;
      const size_t length = range.output.decisions.size();
      range.output = {
          .decisions = output.decisions.subspan(first, length),
          .acceptance_probabilities = output.acceptance_probabilities.subspan(first, length)};
      range.sums = &decided;
      range.prefix_sums = {};
    }
    backend_.Evaluate(parameters, ranges_);
    decisions = output.decisions;
    acceptance_probabilities = output.acceptance_probabilities;
  }
  const std::span<float> ratios = Room(observed_ratios_, count);
  const std::span<float> log_ratios = Room(observed_log_ratios_, count);
  for (size_t i = 0; i < count; ++i) {
    if (!positions.scored(i)) continue;
    const float log_ratio = positions.log_ratios[i];
    if (sis.weight == v1::WEIGHT_EXPECTED) {
      ratios[i] = ExpectedRatio(acceptance_probabilities[i], log_ratio);
      log_ratios[i] = LogExpectedRatio(acceptance_probabilities[i], log_ratio);
    } else {
      const bool accepted = decisions[i] == Decision::kAccepted;
      ratios[i] = accepted ? 1.0f : Exp32(log_ratio);
      log_ratios[i] = accepted ? 0.0f : log_ratio;
    }
  }
  sums += SumsOf(positions, ModifiedRatios{ratios, log_ratios});
  return absl::OkStatus();
}

void PartStatistics::AddAlgorithm(const Algorithm& algorithm,
                                  std::span<float> AlgorithmOutput::*output,
                                  const DecidedPart& part, const DecidedPositions& positions,
                                  CorrectionSums& sums) {
  const size_t count = positions.decisions.size();
  const std::span<TokenState> states = Room(states_, count);
  for (size_t i = 0; i < count; ++i) {
    states[i] = positions.scored(i) ? TokenState::kOffPolicy : TokenState::kMasked;
  }
  const std::span<float> reference = Room(reference_log_probs_, count);
  for (const BackendRange& range : part.ranges) {
    std::ranges::copy(range.behavior.sampled_log_probs,
                      reference.begin() + (range.first_position - part.first_position));
  }
  const std::span<const float> sampled =
      input_.current.sampled_log_probs().subspan(part.offset, count);
  // Without advantages only corrections are observed whose weights don't depend on them.
  const std::span<float> weights = Room(observed_ratios_, count);
  const SequenceRange whole{.sequence_key = 0,
                            .first_position = part.first_position,
                            .count = static_cast<uint32_t>(count)};
  AlgorithmInput batch{.parts = {&whole, 1},
                       .states = states,
                       .log_ratios = positions.log_ratios,
                       .current_log_probs = sampled,
                       .reference_log_probs = reference,
                       .total_variations = part.output.total_variations,
                       .log_importance_ratios = positions.log_ratios,
                       .acceptance_probabilities = positions.acceptance_probabilities,
                       .advantages = positions.advantages};
  if (input_.decoupled()) {
    // As in base_algorithm.cc, the proximal policy becomes the reference.
    const std::span<const float> current = input_.decoupled_log_probs.subspan(part.offset, count);
    const std::span<float> log_ratios = Room(observed_log_ratios_, count);
    const std::span<float> importance_log_ratios = Room(importance_log_ratios_, count);
    for (size_t i = 0; i < count; ++i) {
      if (!positions.scored(i)) continue;
      log_ratios[i] = Flush(current[i] - sampled[i]);
      importance_log_ratios[i] = Flush(current[i] - reference[i]);
    }
    batch.log_importance_ratios = importance_log_ratios;
    batch.log_ratios = log_ratios;
    batch.log_corrections = positions.log_ratios;
    batch.current_log_probs = current;
    batch.reference_log_probs = sampled;
  }
  AlgorithmOutput wanted;
  wanted.*output = weights;
  ApplyAlgorithm(algorithm, batch, wanted);
  sums += SumsOf(positions, weights);
}

}  // namespace sis
