// FetchTopK over several replicas.
#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/replicas/replicas.h"
#include "client/replicas/store_down.h"
#include "client/types/messages.h"
#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

// Of leases that were never released; the servers have ended older ones long ago.
constexpr size_t kLeasesKept = 1 << 16;

// What stands for the records of a slice that are not there.
FetchedChunk EmptyChunk(size_t number, const v1::Slice& slice, uint32_t top_k,
                        const v1::FetchTopKRequest& request) {
  v1::FetchTopKChunk chunk;
  const size_t slots = request.ragged() ? 0 : size_t{slice.length()} * top_k;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  chunk.set_slice(static_cast<uint32_t>(number));
  chunk.set_first_position(slice.first_position());
  chunk.set_length(slice.length());
  const std::vector<int32_t> sampled_ids(slice.length(), -1), ids(slots, -1);
  const std::vector<float> sampled(slice.length(), kNaN), log_probs(slots, kMinusInfinity);
  const auto wanted = [&request](v1::RecordArray array) {
    return request.arrays().empty() ||
           std::ranges::find(request.arrays(), array) != request.arrays().end();
  };
  if (wanted(v1::SAMPLED_IDS)) chunk.set_sampled_ids(ToBytes(std::span(sampled_ids)));
  if (wanted(v1::SAMPLED_LOG_PROBS)) chunk.set_sampled_log_probs(ToBytes(std::span(sampled)));
  if (wanted(v1::TOP_K_IDS)) chunk.set_top_k_ids(ToBytes(std::span(ids)));
  if (wanted(v1::TOP_K_LOG_PROBS)) chunk.set_top_k_log_probs(ToBytes(std::span(log_probs)));
  if (request.ragged() && (wanted(v1::TOP_K_IDS) || wanted(v1::TOP_K_LOG_PROBS))) {
    chunk.set_top_k_counts(std::string(slice.length() * sizeof(uint16_t), '\0'));
  }
  return FetchedChunk(chunk);
}

}  // namespace

absl::StatusOr<v1::FetchTopKHeader> Replicas::MergeHeaders(
    const v1::FetchTopKRequest& request, const Parts& parts,
    const Answers<std::vector<FetchedMessage>>& answers) {
  v1::FetchTopKHeader merged;
  *merged.mutable_slices() = request.slices();
  std::vector<v1::MissingRange> missing;
  Leases leases;
  for (const auto& [replica, messages] : answers.given) {
    const std::vector<size_t>& numbers = parts.at(replica);
    const auto* first =
        messages.empty() ? nullptr : std::get_if<v1::FetchTopKHeader>(&messages.front());
    if (first == nullptr || static_cast<size_t>(first->slices_size()) != numbers.size()) {
      return absl::InternalError("the server's FetchTopK header does not fit the request");
    }
    const v1::FetchTopKHeader& header = *first;
    merged.set_top_k(header.top_k());
    for (size_t i = 0; i < numbers.size(); ++i) {
      *merged.mutable_slices(static_cast<int>(numbers[i])) = header.slices(static_cast<int>(i));
    }
    if (absl::Status status = AddRenumbered(header.missing(), numbers, missing); !status.ok()) {
      return status;
    }
    if (header.lease_id() != 0) leases[replica] = header.lease_id();
  }
  for (const auto& [replica, status] : answers.down) {
    if (merged.top_k() == 0) {
      const std::optional<v1::RunConfig> config = servers_[0]->KnownConfig(request.run().run_id());
      if (!config.has_value()) return status;
      merged.set_top_k(config->top_k());
    }
    for (const size_t number : parts.at(replica)) {
      v1::Slice& slice = *merged.mutable_slices(static_cast<int>(number));
      slice.set_record_digest(kStoreDownDigest);
      missing.push_back(StoreDown(number, slice));
    }
  }
  SortBySlice(missing);
  merged.mutable_missing()->Assign(missing.begin(), missing.end());
  if (!leases.empty()) {
    const std::lock_guard lock(mutex_);
    merged.set_lease_id(next_lease_id_++);
    leases_[merged.lease_id()] = std::move(leases);
    if (leases_.size() > kLeasesKept) leases_.erase(leases_.begin());
  }
  return merged;
}

absl::Status Replicas::FetchTopK(const v1::FetchTopKRequest& request,
                                 SingleServer::Receive receive) {
  if (servers_.size() == 1) return servers_[0]->FetchTopK(request, receive);
  if (request.slices().empty()) return servers_[0]->FetchTopK(request, receive);
  Parts parts;
  for (int number = 0; number < request.slices_size(); ++number) {
    const std::string& id = request.slices(number).sequence().id();
    parts[placement_.Replica(request.run().run_id(), id)].push_back(static_cast<size_t>(number));
  }
  v1::FetchTopKRequest for_all = request;
  for_all.clear_slices();
  for_all.clear_chunks_span_slices();
  using Messages = std::vector<FetchedMessage>;
  absl::StatusOr<Answers<Messages>> answers =
      AskSome<Messages>(ReplicasOf(parts), [&](size_t replica) -> absl::StatusOr<Messages> {
        v1::FetchTopKRequest part = for_all;
        for (const size_t number : parts.at(replica)) {
          *part.add_slices() = request.slices(static_cast<int>(number));
        }
        Messages messages;
        const absl::Status status = servers_[replica]->FetchTopK(part, [&](FetchedMessage message) {
          messages.push_back(std::move(message));
          return absl::OkStatus();
        });
        if (!status.ok()) return status;
        return messages;
      });
  if (!answers.ok()) return answers.status();
  absl::StatusOr<v1::FetchTopKHeader> header = MergeHeaders(request, parts, *answers);
  if (!header.ok()) return header.status();

  std::vector<std::vector<FetchedChunk>> chunks(request.slices_size());
  for (auto& [replica, messages] : answers->given) {
    const std::vector<size_t>& numbers = parts.at(replica);
    for (FetchedMessage& message : std::span(messages).subspan(1)) {
      auto* const chunk = std::get_if<FetchedChunk>(&message);
      if (chunk == nullptr || chunk->slice >= numbers.size()) {
        return absl::InternalError(absl::StrCat("the server's FetchTopK holds no chunk of one of ",
                                                numbers.size(), " slices after its header"));
      }
      chunk->slice = static_cast<uint32_t>(numbers[chunk->slice]);
      chunks[chunk->slice].push_back(std::move(*chunk));
    }
  }
  for (const auto& [replica, status] : answers->down) {
    for (const size_t number : parts.at(replica)) {
      const v1::Slice& slice = request.slices(static_cast<int>(number));
      if (slice.length() == 0) continue;
      chunks[number].push_back(EmptyChunk(number, slice, header->top_k(), request));
    }
  }
  absl::Status status = receive(*std::move(header));
  for (auto& of_slice : chunks) {
    for (FetchedChunk& chunk : of_slice) {
      if (status.ok()) status = receive(std::move(chunk));
    }
  }
  return status;
}

}  // namespace sis
