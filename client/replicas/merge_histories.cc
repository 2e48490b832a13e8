#include "client/replicas/merge_histories.h"

#include <algorithm>
#include <utility>

#include "client/types/sum_totals.h"

namespace sis {
namespace {

using Stretch = v1::GetHistoryResponse::Stretch;

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

v1::GetHistoryResponse MergeHistories(std::vector<v1::GetHistoryResponse> parts) {
  const auto most = std::ranges::max_element(parts, {}, &v1::GetHistoryResponse::stretches_size);
  v1::GetHistoryResponse merged = std::move(*most);
  parts.erase(most);
  for (const v1::GetHistoryResponse& part : parts) {
    for (const Stretch& stretch : part.stretches()) Add(stretch, *merged.mutable_stretches());
  }
  return merged;
}

}  // namespace sis
