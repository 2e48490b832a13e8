#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "client/replicas/merged.h"
#include "client/replicas/sums.h"

namespace sis {
namespace {

void AddCounts(const v1::Histogram& from, v1::Histogram& into) {
  for (int i = 0; i < std::min(from.counts_size(), into.counts_size()); ++i) {
    into.set_counts(i, into.counts(i) + from.counts(i));
  }
}

void AddDistributions(const v1::Distributions& from, v1::Distributions& into) {
  AddCounts(from.abs_log_ratio(), *into.mutable_abs_log_ratio());
  AddCounts(from.log_envelope(), *into.mutable_log_envelope());
  AddCounts(from.residual_mass(), *into.mutable_residual_mass());
  AddCounts(from.acceptance_probability(), *into.mutable_acceptance_probability());
  for (int i = 0; i < std::min(from.ratios_beyond_size(), into.ratios_beyond_size()); ++i) {
    v1::Distributions::BeyondBound& sum = *into.mutable_ratios_beyond(i);
    sum.set_positions(sum.positions() + from.ratios_beyond(i).positions());
  }
  for (int i = 0; i < std::min(from.staleness_size(), into.staleness_size()); ++i) {
    const v1::Distributions::Staleness& counts = from.staleness(i);
    v1::Distributions::Staleness& sum = *into.mutable_staleness(i);
    sum.set_accepted(sum.accepted() + counts.accepted());
    sum.set_rejected(sum.rejected() + counts.rejected());
    sum.set_outside_top_k(sum.outside_top_k() + counts.outside_top_k());
  }
}

using Stretch = v1::GetHistoryResponse::Stretch;

// Adds what another replica counted of the same draws; their number, and which they are, stay.
void AddStretch(const Stretch& part, Stretch& merged) {
  merged.set_begun_at(std::min(merged.begun_at(), part.begun_at()));
  merged.set_ended_at(std::max(merged.ended_at(), part.ended_at()));
  AddNumbers(part.totals(), *merged.mutable_totals());
  merged.set_sequences(merged.sequences() + part.sequences());
  AddMissing(part.missing(), *merged.mutable_missing());
  AddCorrections(part.corrections(), *merged.mutable_corrections());
  merged.set_uncounted_positions(merged.uncounted_positions() + part.uncounted_positions());
}

void Add(const Stretch& part, google::protobuf::RepeatedPtrField<Stretch>& stretches) {
  // The newest one: a draw may have been evaluated again.
  const auto same = std::find_if(stretches.rbegin(), stretches.rend(), [&](const Stretch& stretch) {
    return stretch.first_draw() <= part.last_draw() && part.last_draw() <= stretch.last_draw();
  });
  if (same != stretches.rend()) return AddStretch(part, *same);
  const auto later = std::ranges::find_if(
      stretches, [&](const Stretch& stretch) { return stretch.ended_at() >= part.ended_at(); });
  const auto place = later - stretches.begin();
  *stretches.Add() = part;
  std::rotate(stretches.begin() + place, stretches.end() - 1, stretches.end());
}

}  // namespace

v1::GetStepResponse Merged(const std::vector<v1::GetStepResponse>& parts) {
  v1::GetStepResponse merged;
  std::vector<v1::Totals> totals;
  for (const v1::GetStepResponse& part : parts) {
    totals.push_back(part.totals());
    AddNumbers(part, merged);
    AddCorrections(part.corrections(), *merged.mutable_corrections());
    AddMissing(part.missing(), *merged.mutable_missing());
    AddPrefixCurve(part.prefix_curve(), *merged.mutable_prefix_curve());
    if (merged.has_distributions()) {
      AddDistributions(part.distributions(), *merged.mutable_distributions());
    } else if (part.has_distributions()) {
      *merged.mutable_distributions() = part.distributions();
    }
  }
  *merged.mutable_totals() = SumTotals(totals);
  return merged;
}

v1::ListStepsResponse Merged(const std::vector<v1::ListStepsResponse>& parts) {
  struct Draw {
    uint64_t draw;
    int from_end;  // of the list of the replica that evaluated it last, as far as that can be told
    std::vector<v1::GetStepResponse> parts;
  };
  std::map<uint64_t, Draw> draws;
  for (const v1::ListStepsResponse& part : parts) {
    for (int i = 0; i < part.steps_size(); ++i) {
      const int from_end = part.steps_size() - i;
      Draw& draw = draws.try_emplace(part.steps(i).draw(), Draw{part.steps(i).draw(), from_end, {}})
                       .first->second;
      draw.from_end = std::min(draw.from_end, from_end);
      draw.parts.push_back(part.steps(i).step());
    }
  }
  std::vector<Draw> in_order;
  for (auto& [number, draw] : draws) in_order.push_back(std::move(draw));
  std::ranges::stable_sort(in_order, std::greater(), &Draw::from_end);
  v1::ListStepsResponse merged;
  for (const Draw& draw : in_order) {
    v1::ListStepsResponse::Step& step = *merged.add_steps();
    step.set_draw(draw.draw);
    *step.mutable_step() = Merged(draw.parts);
  }
  return merged;
}

v1::GetHistoryResponse Merged(const std::vector<v1::GetHistoryResponse>& parts) {
  const auto most = std::ranges::max_element(parts, {}, &v1::GetHistoryResponse::stretches_size);
  v1::GetHistoryResponse merged = *most;
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    if (part == most) continue;
    for (const Stretch& stretch : part->stretches()) Add(stretch, *merged.mutable_stretches());
  }
  return merged;
}

}  // namespace sis
