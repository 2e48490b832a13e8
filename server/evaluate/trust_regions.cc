#include "server/evaluate/trust_regions.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

constexpr int kMaxTrustRegions = 8;

static_assert(static_cast<int>(Divergence::kK1) == v1::SequenceTrustRegion::K1);
static_assert(static_cast<int>(Divergence::kK2) == v1::SequenceTrustRegion::K2);
static_assert(static_cast<int>(Divergence::kK3) == v1::SequenceTrustRegion::K3);
static_assert(static_cast<int>(Divergence::kTotalVariation) ==
              v1::SequenceTrustRegion::TOTAL_VARIATION);
static_assert(static_cast<int>(Divergence::kKl) == v1::SequenceTrustRegion::KL);
static_assert(static_cast<int>(Aggregate::kSum) == v1::SequenceTrustRegion::SUM);
static_assert(static_cast<int>(Aggregate::kMean) == v1::SequenceTrustRegion::MEAN);
static_assert(static_cast<int>(Aggregate::kMax) == v1::SequenceTrustRegion::MAX);
static_assert(v1::SequenceTrustRegion::Divergence_MAX == v1::SequenceTrustRegion::KL);
static_assert(v1::SequenceTrustRegion::Aggregate_MAX == v1::SequenceTrustRegion::MAX);

absl::StatusOr<SequenceTrustRegion> Parse(const v1::SequenceTrustRegion& message,
                                          bool has_every_slot, bool has_advantages) {
  SequenceTrustRegion region;
  if (!v1::SequenceTrustRegion::Divergence_IsValid(message.divergence())) {
    return absl::InvalidArgumentError(
        absl::StrCat("divergence: ", static_cast<int>(message.divergence()), " is none"));
  }
  if (!v1::SequenceTrustRegion::Aggregate_IsValid(message.aggregate())) {
    return absl::InvalidArgumentError(
        absl::StrCat("aggregate: ", static_cast<int>(message.aggregate()), " is none"));
  }
  region.divergence = static_cast<Divergence>(message.divergence());
  region.aggregate = static_cast<Aggregate>(message.aggregate());
  if (NeedsEverySlot(region) && !has_every_slot) {
    return absl::InvalidArgumentError(
        absl::StrCat("divergence: ", v1::SequenceTrustRegion::Divergence_Name(message.divergence()),
                     " needs log-probs at every slot, which this form does not have"));
  }
  region.negative_advantages_only = message.negative_advantages_only();
  if (region.negative_advantages_only && !has_advantages) {
    return absl::InvalidArgumentError(
        "negative_advantages_only: needs advantages, which are unset");
  }
  if (!message.has_lower() && !message.has_upper()) {
    return absl::InvalidArgumentError("lower, upper: neither is set");
  }
  if (message.has_lower()) region.lower = message.lower();
  if (message.has_upper()) region.upper = message.upper();
  if (region.lower <= region.upper) return region;
  return absl::InvalidArgumentError(
      absl::StrCat("lower, upper: [", region.lower, ", ", region.upper, "] is no interval"));
}

}  // namespace

absl::StatusOr<std::vector<SequenceTrustRegion>> ParseTrustRegions(
    const v1::EvaluateRequest& request, bool has_every_slot, bool has_advantages) {
  if (request.trust_regions_size() > kMaxTrustRegions) {
    return absl::InvalidArgumentError(absl::StrCat("trust_regions: ", request.trust_regions_size(),
                                                   " regions, at most ", kMaxTrustRegions));
  }
  std::vector<SequenceTrustRegion> regions;
  for (const v1::SequenceTrustRegion& message : request.trust_regions()) {
    absl::StatusOr<SequenceTrustRegion> region = Parse(message, has_every_slot, has_advantages);
    if (!region.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("trust_regions[", regions.size(), "].", region.status().message()));
    }
    regions.push_back(*region);
  }
  return regions;
}

SliceDivergences DivergencesOf(const EvaluateInput& input, const PositionOutput& positions,
                               size_t offset) {
  if (input.trust_regions.empty()) return {};
  std::vector<SequenceDivergence> divergences(input.trust_regions.size());
  bool has_negative_advantage = false;
  for (size_t i = 0; i < positions.view.decisions.size(); ++i) {
    const Decision decision = positions.view.decisions[i];
    if (decision == Decision::kMasked) continue;
    if (decision == Decision::kMissing && input.own_log_probs.empty()) continue;
    has_negative_advantage |= input.has_negative_advantage(offset + i);
    const float log_ratio =
        Flush(input.sampled_log_probs[offset + i] - positions.reference_log_probs[i]);
    for (size_t j = 0; j < divergences.size(); ++j) {
      switch (input.trust_regions[j].divergence) {
        case Divergence::kTotalVariation:
          divergences[j].Add(positions.total_variations[i]);
          break;
        case Divergence::kKl:
          divergences[j].Add(positions.kl_divergences[i]);
          break;
        default:
          divergences[j].Add(EstimatedDivergence(input.trust_regions[j].divergence, log_ratio));
      }
    }
  }
  SliceDivergences of;
  for (size_t j = 0; j < divergences.size(); ++j) {
    const SequenceTrustRegion& region = input.trust_regions[j];
    of.values.push_back(divergences[j].Of(region.aggregate));
    of.positions = divergences[j].positions;
    if (of.positions == 0 || region.Holds(of.values.back())) continue;
    if (!region.negative_advantages_only) {
      of.left_out = MaskedPart::kAll;
    } else if (has_negative_advantage) {
      of.left_out = std::max(of.left_out, MaskedPart::kNegativeAdvantages);
    }
  }
  return of;
}

}  // namespace sis
