#include "tests/integration/record_pool.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "kernels/block/read.h"
#include "kernels/numerics/log_prob.h"
#include "server/messages/cache_messages.h"

namespace sis {
namespace {

template <typename T>
void Append(std::vector<T>& values, std::span<const T> more) {
  values.insert(values.end(), more.begin(), more.end());
}

// Some end in a log-prob that only float32 can hold.
Records Generate(const v1::RunConfig& config, uint32_t rows, uint32_t seed) {
  RecordGenerator generator(static_cast<int>(config.top_k()),
                            static_cast<int32_t>(config.vocabulary_size()), seed);
  Records records = generator.NextRecords(rows);
  const size_t slots = records.slots;
  for (size_t row = 0; row < rows; row += 5) {
    const size_t last = row * slots + slots - 1;
    if (records.ids[last] == -1) continue;
    records.log_probs[last] = -1e6f;
    if (records.ranks[row] == slots - 1) records.sampled_log_probs[row] = -1e6f;
  }
  return records;
}

}  // namespace

RecordPool::RecordPool(const v1::RunConfig& config, uint32_t rows, uint32_t seed)
    : config_(config),
      rows_(rows),
      sent_(Generate(config, rows, seed)),
      recorded_{.slots = sent_.slots} {
  Record();
  for (uint32_t row = 0; row < rows; ++row) AddTwin(row);
  Record();
  current_ = RecordGenerator(sent_.slots, static_cast<int32_t>(config.vocabulary_size()), seed + 1)
                 .NextCurrent(recorded_);

  std::map<std::vector<std::byte>, size_t> contents;
  for (const std::vector<std::byte>& block : packed_) {
    contents_.push_back(contents.emplace(block, contents.size()).first->second);
  }
}

void RecordPool::Record() {
  const size_t slots = sent_.slots;
  for (uint32_t row = recorded_.size(); row < sent_.size(); ++row) {
    packed_.push_back(*PackBlock(
        sent_.View(row, 1), {.encoding = FromMessage(config_)->log_prob_encoding,
                             .slots = sent_.slots,
                             .vocabulary_size = static_cast<int32_t>(config_.vocabulary_size())}));
    const BlockView block = *OpenBlock(packed_.back(), /*checksums=*/false);
    recorded_.sampled_ids.push_back(sent_.sampled_ids[row]);
    recorded_.sampled_log_probs.push_back(sent_.sampled_log_probs[row]);
    recorded_.ranks.push_back(block.ranks[0]);
    recorded_.ids.resize(recorded_.size() * slots);
    recorded_.log_probs.resize(recorded_.size() * slots);
    ReadBlockIdRows(block, slots, std::span(recorded_.ids).last(slots));
    ReadBlockLogProbRows(block, slots, std::span(recorded_.log_probs).last(slots));
  }
}

void RecordPool::AddTwin(uint32_t row) {
  const size_t slots = sent_.slots;
  const RecordView view = sent_.View(row, 1);
  std::vector<int32_t> ids(view.ids.begin(), view.ids.end());
  std::vector<float> log_probs(view.log_probs.begin(), view.log_probs.end());
  int32_t sampled_id = view.sampled_ids[0];
  float sampled_log_prob = view.sampled_log_probs[0];
  const uint8_t rank = sent_.ranks[row];
  const size_t used = std::ranges::find(ids, -1) - ids.begin();
  switch (row % 3) {
    case 0: {  // another id, in the last slot if there is one
      if (used > 1 && log_probs[used - 1] == log_probs[used - 2]) break;  // ties go by id
      int32_t id = 0;
      while (id == sampled_id || std::ranges::find(ids, id) != ids.end()) ++id;
      if (used == 0 || rank == used - 1) sampled_id = id;
      if (used > 0) ids[used - 1] = id;
      break;
    }
    case 1: {  // the next log-prob of the sampled token
      const float lower = std::nextafter(sampled_log_prob, kMinusInfinity);
      if (rank == kBlockRankOutside) {
        sampled_log_prob = lower;
      } else if (rank + size_t{1} == used || log_probs[rank + 1] < lower) {
        log_probs[rank] = sampled_log_prob = lower;
      }
      break;
    }
    case 2:  // what is recorded, where that may be sent
      if (rank == kBlockRankOutside) {
        const auto rounded = std::span(recorded_.log_probs).subspan(row * slots, slots);
        std::ranges::copy(rounded, log_probs.begin());
        for (size_t slot = 0; slot < slots; ++slot) {
          if (log_probs[slot] == kMinusInfinity) ids[slot] = -1;
        }
        // Rounding may tie what was not: then ids are out of order.
        for (size_t slot = 1; slot < slots; ++slot) {
          if (log_probs[slot] == log_probs[slot - 1] && ids[slot] < ids[slot - 1]) {
            ids.assign(view.ids.begin(), view.ids.end());
            log_probs.assign(view.log_probs.begin(), view.log_probs.end());
            break;
          }
        }
      }
      break;
  }
  sent_.ids.insert(sent_.ids.end(), ids.begin(), ids.end());
  sent_.log_probs.insert(sent_.log_probs.end(), log_probs.begin(), log_probs.end());
  sent_.sampled_ids.push_back(sampled_id);
  sent_.sampled_log_probs.push_back(sampled_log_prob);
  sent_.ranks.push_back(rank);
}

v1::AppendEntry RecordPool::Block(const SequenceName& name, uint32_t first_position,
                                  uint64_t policy_version, std::span<const uint32_t> rows) const {
  Records records{.slots = sent_.slots};
  for (const uint32_t row : rows) {
    const RecordView view = sent_.View(row, 1);
    Append(records.sampled_ids, view.sampled_ids);
    Append(records.sampled_log_probs, view.sampled_log_probs);
    Append(records.ids, view.ids);
    Append(records.log_probs, view.log_probs);
  }
  records.ranks.resize(rows.size());
  v1::AppendEntry entry =
      records.Block(name.id, first_position, policy_version, 0, static_cast<uint32_t>(rows.size()))
          .Entry(config_);
  entry.mutable_sequence()->set_attempt(name.attempt);
  return entry;
}

uint64_t RecordPool::Digest(uint32_t row, uint32_t position) const {
  BlockHeader header = OpenBlock(packed_[row], /*checksums=*/false)->header;
  header.first_position = position;
  return DigestOf(BlockView(header, packed_[row]), 0, 1);
}

}  // namespace sis
