// The dense kernel against one core's read bandwidth, measured in turn in the same run. Prints
// medians, and the range of all rounds in brackets.
#include "kernels/decide/dense/dense.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "tests/bench/read_bandwidth.h"

namespace sis {
namespace {

constexpr size_t kBytes = size_t{256} << 20;  // of logits: far more than a cache holds
constexpr int kSlots = 50;
constexpr int kRounds = 9;

template <class Work>
double Seconds(const Work& work) {
  const double start = ThreadSeconds();
  work();
  return ThreadSeconds() - start;
}

struct Batch {
  Batch(LogitType type, int32_t vocabulary)
      : type(type),
        vocabulary(vocabulary),
        positions(kBytes / (vocabulary * LogitBytes(type))),
        logits(kBytes) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    // One row of random logits, for all positions.
    const size_t bytes = LogitBytes(type);
    const size_t row_bytes = vocabulary * bytes;
    std::vector<std::byte> row(row_bytes);
    for (size_t i = 0; i < row_bytes; i += bytes) {
      const float logit = normal(random);
      if (type == LogitType::kFloat32) std::memcpy(&row[i], &logit, 4);
      if (type == LogitType::kBfloat16) {
        std::memcpy(&row[i], reinterpret_cast<const std::byte*>(&logit) + 2, 2);
      }
    }
    for (size_t i = 0; i < positions; ++i) {
      std::memcpy(&logits[i * row_bytes], row.data(), row_bytes);
      sampled_ids.push_back(static_cast<int32_t>(random() % vocabulary));
      for (int slot = 0; slot < kSlots; ++slot) {
        ids.push_back(static_cast<int32_t>(random() % vocabulary));
      }
    }
    sampled_log_probs.resize(positions);
    log_probs.resize(positions * kSlots);
  }

  void Gather() {
    for (size_t i = 0; i < positions; ++i) {
      const LogitRow row{type, &logits[i * vocabulary * LogitBytes(type)], vocabulary};
      const double log_sum_exp = LogSumExpOfRow(row, 0).value();
      GatherLogProbs(row, log_sum_exp, {&sampled_ids[i], 1}, {&sampled_log_probs[i], 1});
      GatherLogProbs(row, log_sum_exp, std::span(ids).subspan(i * kSlots, kSlots),
                     std::span(log_probs).subspan(i * kSlots, kSlots));
    }
  }

  LogitType type;
  int32_t vocabulary;
  size_t positions;
  std::vector<std::byte> logits;
  std::vector<int32_t> sampled_ids;
  std::vector<int32_t> ids;
  std::vector<float> sampled_log_probs;
  std::vector<float> log_probs;
};

void Measure(const char* name, LogitType type, int32_t vocabulary) {
  Batch batch(type, vocabulary);
  const size_t row_bytes = vocabulary * LogitBytes(type);
  const double gigabytes = 1e-9 * static_cast<double>(batch.positions * row_bytes);
  std::vector<double> read, kernel, ratios;
  volatile uint64_t sink = 0;
  batch.Gather();
  for (int round = 0; round < kRounds; ++round) {
    read.push_back(1e-9 * kBytes / Seconds([&] { sink = sink + ReadAll(batch.logits); }));
    kernel.push_back(gigabytes / Seconds([&] { batch.Gather(); }));
    ratios.push_back(kernel.back() / read.back());
  }
  const Spread rate = SpreadOf(kernel);
  const Spread ratio = SpreadOf(ratios);
  const Spread reading = SpreadOf(read);
  std::printf("%-8s %7d %9.0f  %5.1f [%4.1f, %4.1f]  %5.1f [%4.1f, %4.1f]  %5.2f [%4.2f, %4.2f]\n",
              name, vocabulary, rate.median * 1e9 / static_cast<double>(row_bytes), rate.median,
              rate.least, rate.most, reading.median, reading.least, reading.most, ratio.median,
              ratio.least, ratio.most);
}

}  // namespace
}  // namespace sis

int main() {
  std::printf("%-8s %7s %9s  %-18s  %-18s  %s\n", "logits", "width", "tokens/s", "kernel, GB/s",
              "reading, GB/s", "kernel to reading");
  for (const int32_t vocabulary : {32000, 151936}) {
    sis::Measure("float32", sis::LogitType::kFloat32, vocabulary);
    sis::Measure("bfloat16", sis::LogitType::kBfloat16, vocabulary);
  }
}
