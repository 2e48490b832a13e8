// Whether a received AppendRequest is what protobuf reads, for tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "server/wire/append_request.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

inline std::string Whole(const ArrayField& array) {
  std::vector<char> copy;
  const std::span<const char> bytes = array.Read<char>(0, array.size(), copy);
  return {bytes.begin(), bytes.end()};
}

inline bool SameName(const AppendEntryView& view, const v1::SequenceRef& sequence) {
  return view.sequence_id == sequence.id() && view.attempt == sequence.attempt();
}

inline bool SameEntry(const AppendEntryView& view, const v1::AppendEntry& entry) {
  using Kind = AppendEntryView::Kind;
  switch (entry.entry_case()) {
    case v1::AppendEntry::kBlock: {
      const v1::Block& block = entry.block();
      return view.kind == Kind::kBlock && SameName(view, block.sequence()) &&
             view.first_position == block.first_position() &&
             view.policy_version == block.policy_version() &&
             Whole(view.sampled_ids) == block.sampled_ids() &&
             Whole(view.sampled_log_probs) == block.sampled_log_probs() &&
             Whole(view.top_k_ids) == block.top_k_ids() &&
             Whole(view.top_k_log_probs) == block.top_k_log_probs() &&
             Whole(view.top_k_counts) == block.top_k_counts() &&
             view.crc32c.has_value() == block.has_crc32c() &&
             view.crc32c.value_or(0) == block.crc32c();
    }
    case v1::AppendEntry::kSeal: {
      v1::Annotation known = entry.seal().annotation();
      known.DiscardUnknownFields();
      return view.kind == Kind::kSeal && SameName(view, entry.seal().sequence()) &&
             view.length == entry.seal().length() &&
             (view.annotation != nullptr) == entry.seal().has_annotation() &&
             (view.annotation == nullptr ||
              view.annotation->SerializeAsString() == known.SerializeAsString());
    }
    case v1::AppendEntry::kGap:
      return view.kind == Kind::kGap && SameName(view, entry.gap().sequence()) &&
             view.first_position == entry.gap().first_position() &&
             view.length == entry.gap().length() && view.reason == entry.gap().reason();
    case v1::AppendEntry::ENTRY_NOT_SET:
      return view.kind == Kind::kNone;
  }
  return false;
}

inline bool SameRequest(const ReceivedAppend& received, const v1::AppendRequest& request) {
  if (received.is_header() != request.has_header()) return false;
  if (received.is_batch() != request.has_batch()) return false;
  if (received.is_header()) {
    v1::AppendHeader known = request.header();
    known.DiscardUnknownFields();
    return received.header().SerializeAsString() == known.SerializeAsString();
  }
  if (!received.is_batch()) return true;
  if (received.entries().size() != static_cast<size_t>(request.batch().entries_size())) {
    return false;
  }
  for (int i = 0; i < request.batch().entries_size(); ++i) {
    if (!SameEntry(received.entries()[i], request.batch().entries(i))) return false;
  }
  return true;
}

}  // namespace sis
