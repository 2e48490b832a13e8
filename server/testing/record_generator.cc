#include "server/testing/record_generator.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <span>

#include "kernels/block/pack.h"
#include "kernels/decide/decide.h"

namespace sis {
namespace {

template <typename T>
std::string Bytes(std::span<const T> array) {
  return {reinterpret_cast<const char*>(array.data()), array.size_bytes()};
}

std::span<const float> Rows(const std::vector<float>& array, size_t first, size_t count,
                            size_t width) {
  return std::span(array).subspan(first * width, count * width);
}

}  // namespace

RecordView Records::View(uint32_t first, uint32_t count) const {
  const size_t width = slots;
  return {.sampled_ids = std::span(sampled_ids).subspan(first, count),
          .sampled_log_probs = Rows(sampled_log_probs, first, count, 1),
          .ids = std::span(ids).subspan(first * width, count * width),
          .log_probs = Rows(log_probs, first, count, width)};
}

RecordedBlock Records::Block(const std::string& sequence, uint32_t first_position,
                             uint64_t policy_version, uint32_t first, uint32_t count) const {
  const RecordView view = View(first, count);
  const auto copy = [](auto array) { return std::vector(array.begin(), array.end()); };
  return {.sequence = sequence,
          .first_position = first_position,
          .policy_version = policy_version,
          .records = {.slots = slots,
                      .sampled_ids = copy(view.sampled_ids),
                      .sampled_log_probs = copy(view.sampled_log_probs),
                      .ids = copy(view.ids),
                      .log_probs = copy(view.log_probs),
                      .ranks = copy(std::span(ranks).subspan(first, count))}};
}

RecordedBlock Records::Block(const std::string& sequence, uint64_t policy_version) const {
  return Block(sequence, 0, policy_version, 0, size());
}

v1::AppendEntry RecordedBlock::Entry(const v1::RunConfig& config) const {
  const std::vector<std::byte> block = *PackBlock(
      records.View(), {.encoding = config.log_prob_encoding() == v1::LOG_PROB_ENCODING_FLOAT32
                                       ? BlockEncoding::kFloat32
                                       : BlockEncoding::kFixed16,
                       .slots = records.slots,
                       .vocabulary_size = static_cast<int32_t>(config.vocabulary_size()),
                       .first_position = first_position,
                       .policy_version = policy_version,
                       .mass = config.mass()});
  v1::AppendEntry entry;
  entry.mutable_sequence()->set_id(sequence);
  entry.set_block(Bytes(std::span(block)));
  return entry;
}

v1::Gathered CurrentValues::Gathered(uint32_t first, uint32_t count) const {
  v1::Gathered gathered;
  for (size_t i = first; i < first + count; ++i) {
    const std::span<const float> row = Rows(log_probs, i, 1, slots);
    const auto used =
        std::ranges::find_if(row, [](float value) { return std::isnan(value); }) - row.begin();
    gathered.mutable_counts()->push_back(static_cast<char>(used));
    *gathered.mutable_log_probs() += Bytes(row.first(used));
  }
  gathered.set_sampled_log_probs(Bytes(Rows(sampled_log_probs, first, count, 1)));
  return gathered;
}

v1::Reduced CurrentValues::Reduced(const Records& records, int top_k, uint32_t first,
                                   uint32_t count) const {
  std::vector<float> envelopes;
  std::vector<float> masses;
  for (size_t i = first; i < first + count; ++i) {
    EnvelopeAccumulator accumulator;
    for (size_t slot = i * slots; slot < i * slots + top_k; ++slot) {
      accumulator.Add(records.log_probs[slot], log_probs[slot]);
    }
    const Envelope envelope = accumulator.Finish();
    envelopes.push_back(envelope.log_envelope);
    masses.push_back(envelope.covered_mass);
  }
  v1::Reduced reduced;
  reduced.set_sampled_log_probs(Bytes(Rows(sampled_log_probs, first, count, 1)));
  reduced.set_log_envelopes(Bytes(std::span<const float>(envelopes)));
  reduced.set_covered_masses(Bytes(std::span<const float>(masses)));
  return reduced;
}

std::vector<float> RecordGenerator::LogProbs(size_t count) {
  std::vector<double> weights(count);
  std::exponential_distribution<double> weight;
  double sum = weight(random_);  // of the tokens outside
  for (double& w : weights) sum += w = weight(random_) + 1e-6;
  std::vector<float> log_probs;
  for (const double w : weights) log_probs.push_back(static_cast<float>(std::log(w / sum)));
  return log_probs;
}

Records RecordGenerator::NextRecords(uint32_t count) {
  Records records{.slots = slots_};
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t used = Uniform(0, 3) == 0 ? Uniform(0, slots_) : slots_;
    std::set<int32_t> distinct;
    while (distinct.size() < used + 1) distinct.insert(Uniform(0, vocabulary_size_ - 1));
    std::vector<int32_t> ids(distinct.begin(), distinct.end());
    std::ranges::shuffle(ids, random_);
    const int32_t outside = ids.back();
    std::vector<float> log_probs = LogProbs(used);
    std::ranges::sort(log_probs, std::greater<>());
    for (size_t slot = 1; slot < used; ++slot) {  // ties are ordered by id
      if (log_probs[slot] == log_probs[slot - 1] && ids[slot] < ids[slot - 1]) {
        log_probs[slot] = std::nextafter(log_probs[slot], kMinusInfinity);
      }
    }
    const bool in_set = used > 0 && Uniform(0, 4) != 0;
    const uint32_t rank = in_set ? Uniform(0, used - 1) : kBlockRankOutside;
    records.sampled_ids.push_back(in_set ? ids[rank] : outside);
    records.sampled_log_probs.push_back(in_set ? log_probs[rank] : LogProbs(1).front());
    for (int slot = 0; slot < slots_; ++slot) {
      const bool unused = slot >= static_cast<int>(used);
      records.ids.push_back(unused ? -1 : ids[slot]);
      records.log_probs.push_back(unused ? kMinusInfinity : log_probs[slot]);
    }
    records.ranks.push_back(static_cast<uint8_t>(rank));
  }
  return records;
}

CurrentValues RecordGenerator::NextCurrent(const Records& records) {
  CurrentValues current{.slots = slots_};
  for (uint32_t i = 0; i < records.size(); ++i) {
    const std::span<const float> recorded = Rows(records.log_probs, i, 1, slots_);
    const std::vector<float> log_probs = LogProbs(slots_);
    for (int slot = 0; slot < slots_; ++slot) {
      current.log_probs.push_back(recorded[slot] == kMinusInfinity
                                      ? std::numeric_limits<float>::quiet_NaN()
                                      : log_probs[slot]);
    }
    const uint8_t rank = records.ranks[i];
    current.sampled_log_probs.push_back(rank == kBlockRankOutside ? LogProbs(1).front()
                                                                  : log_probs[rank]);
  }
  return current;
}

}  // namespace sis
