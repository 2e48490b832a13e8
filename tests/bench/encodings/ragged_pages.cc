// Prints what pages of sets as long as their mass take, in bytes and in time, beside pages with
// room for K slots of the same sets: the tables of docs/encodings.md. Recorded log-probs are read
// from the folder $SIS_RECORDED_DATA, if it is set.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/decide/simd_backend.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/mass_cut.h"
#include "kernels/records/record_view.h"
#include "server/cache/page.h"
#include "tests/bench/encodings/policy_pairs.h"

namespace sis {
namespace {

constexpr int32_t kVocabularySize = 151936;
constexpr uint32_t kPositions = Page::kPositions;
constexpr int kRounds = 25;

// The sets of whole pages, sampled tokens drawn from them.
struct Sets {
  int slots;
  size_t positions;
  std::vector<int32_t> sampled_ids;
  std::vector<float> sampled_log_probs;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  std::vector<uint16_t> ranks;
  std::vector<float> current_sampled;
  std::vector<float> current;
  // Those of used slots alone: how many each position has, their values, and where each page's
  // begin.
  std::vector<uint16_t> counts;
  std::vector<float> used_current;
  std::vector<size_t> page_begins;

  RecordView Page(size_t page) const {
    const size_t first = page * kPositions;
    const auto part = [&](const auto& values, size_t width) {
      return std::span(values).subspan(first * width, kPositions * width);
    };
    return {part(sampled_ids, 1), part(sampled_log_probs, 1), part(ids, slots),
            part(log_probs, slots)};
  }
  std::span<const uint16_t> RanksOf(size_t page) const {
    return std::span(ranks).subspan(page * kPositions, kPositions);
  }
  size_t pages() const { return positions / kPositions; }
};

Sets Cut(const PolicyPairs& pairs, double mass) {
  Sets sets;
  sets.slots = pairs.slots;
  sets.positions = pairs.positions.size() / kPositions * kPositions;
  std::mt19937 random(3);
  for (size_t i = 0; i < sets.positions; ++i) {
    const PolicyPair& pair = pairs.positions[i];
    double u = std::uniform_real_distribution<double>()(random);
    size_t drawn = 0;
    while (drawn < pair.behavior.size() && (u -= std::exp(double{pair.behavior[drawn]})) > 0) {
      ++drawn;
    }
    const bool inside = drawn < pair.behavior.size();
    const auto first = static_cast<int32_t>(random() % kVocabularySize);
    const auto id = [&](size_t slot) {
      return static_cast<int32_t>((first + slot * 40503) % kVocabularySize);
    };
    sets.sampled_ids.push_back(id(drawn));
    sets.sampled_log_probs.push_back(inside ? pair.behavior[drawn] : -9.0f);
    sets.current_sampled.push_back(inside ? pair.current[drawn] : -9.1f);
    sets.ranks.push_back(inside ? static_cast<uint16_t>(drawn) : kRankOutside);
    for (size_t slot = 0; slot < pair.behavior.size(); ++slot) sets.ids.push_back(id(slot));
    sets.log_probs.insert(sets.log_probs.end(), pair.behavior.begin(), pair.behavior.end());
    sets.current.insert(sets.current.end(), pair.current.begin(), pair.current.end());
  }
  const auto slots = static_cast<size_t>(sets.slots);
  CutToMass(mass, slots, sets.ids, sets.log_probs, sets.ranks);
  for (size_t i = 0; i < sets.positions; ++i) {
    if (i % kPositions == 0) sets.page_begins.push_back(sets.used_current.size());
    const auto ids = std::span(sets.ids).subspan(i * slots, slots);
    const auto count = static_cast<size_t>(std::ranges::find(ids, -1) - ids.begin());
    const auto values = std::span(sets.current).subspan(i * slots, count);
    sets.counts.push_back(static_cast<uint16_t>(count));
    sets.used_current.insert(sets.used_current.end(), values.begin(), values.end());
  }
  sets.page_begins.push_back(sets.used_current.size());
  return sets;
}

std::vector<std::vector<std::byte>> Pack(const Sets& sets, PageVersion version) {
  std::vector<std::vector<std::byte>> pages;
  for (size_t page = 0; page < sets.pages(); ++page) {
    const PageHeader header = HeaderOf({.encoding = LogProbEncoding::kFixed12,
                                        .slots = sets.slots,
                                        .vocabulary_size = kVocabularySize,
                                        .first_position = static_cast<uint32_t>(page * kPositions),
                                        .positions = kPositions,
                                        .version = version},
                                       sets.Page(page), sets.RanksOf(page));
    EncodePage(header, sets.Page(page), sets.RanksOf(page), pages.emplace_back(PageBytes(header)));
  }
  return pages;
}

// As the server decides.
std::vector<Decision> Decide(const Sets& sets, const std::vector<std::vector<std::byte>>& pages,
                             const std::vector<PageHeader>& headers, const Backend& backend,
                             std::vector<UnpackedCounts>& unpacked,
                             std::vector<Stretch>& stretches) {
  std::vector<Decision> decisions(sets.positions);
  stretches.clear();
  Sums sums;
  const size_t slots = sets.slots;
  const auto add = [&](const PageView& view, size_t first, const BehaviorView& behavior) {
    stretches.push_back(
        {.sequence_key = 1,
         .first_position = static_cast<uint32_t>(first),
         .behavior = behavior,
         .current = {.sampled_log_probs =
                         std::span(sets.current_sampled).subspan(first, kPositions),
                     .log_probs =
                         std::span(sets.current).subspan(first * slots, kPositions * slots),
                     .log_envelopes = {},
                     .covered_masses = {}},
         .output = {.decisions = std::span(decisions).subspan(first, kPositions)},
         .sums = &sums});
    stretches.back().behavior.sampled_log_probs = {
        reinterpret_cast<const float*>(view.sampled_log_probs.data()), kPositions};
  };
  for (size_t page = 0; page < pages.size(); ++page) {
    const PageView view = ViewPage(headers[page], pages[page]);
    const size_t first = page * kPositions;
    if (!view.header.ragged()) {
      add(view, first,
          {.log_probs = {},
           .sampled_log_probs = {},
           .sampled_ranks = {reinterpret_cast<const uint8_t*>(view.ranks.data()), kPositions},
           .grouped_log_probs = {.rows = view.log_probs, .encoding = view.header.encoding}});
      continue;
    }
    UnpackedCounts& counts = unpacked[page % unpacked.size()];
    UnpackCounts(view, counts);
    add(view, first,
        {.log_probs = {},
         .sampled_log_probs = {},
         .sampled_ranks = counts.ranks,
         .ragged_log_probs = RaggedLogProbsOf(view, counts, 0, kPositions)});
    CurrentView& current = stretches.back().current;
    const size_t begin = sets.page_begins[page];
    current.log_probs =
        std::span(sets.used_current).subspan(begin, sets.page_begins[page + 1] - begin);
    current.counts = std::span(sets.counts).subspan(first, kPositions);
    // As many as are sent to the backend at once.
    if (page % unpacked.size() == unpacked.size() - 1) {
      backend.Evaluate({.slots = sets.slots, .top_k = sets.slots, .draw = 7}, stretches);
      stretches.clear();
    }
  }
  backend.Evaluate({.slots = sets.slots, .top_k = sets.slots, .draw = 7}, stretches);
  return decisions;
}

std::vector<PageHeader> HeadersOf(const std::vector<std::vector<std::byte>>& pages) {
  std::vector<PageHeader> headers;
  for (const auto& page : pages) headers.push_back(OpenPage(page)->header);
  return headers;
}

template <typename F>
double Seconds(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Ratios of what was measured in turn: the median, and the quartiles.
std::string Ratio(std::vector<double> ratios) {
  std::ranges::sort(ratios);
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f (%.2f to %.2f)", ratios[ratios.size() / 2],
                ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4]);
  return text;
}

void Measure(const PolicyPairs& pairs) {
  const SimdBackend backend;
  for (const double mass : {0.9, 0.97, 0.99}) {
    const Sets sets = Cut(pairs, mass);
    const auto fixed = Pack(sets, PageVersion::kFixed);
    const auto ragged = Pack(sets, PageVersion::kRagged);
    const std::vector<PageHeader> fixed_headers = HeadersOf(fixed);
    const std::vector<PageHeader> ragged_headers = HeadersOf(ragged);
    size_t used = 0, bytes = 0, charged = 0;
    for (size_t page = 0; page < ragged.size(); ++page) {
      used += ragged_headers[page].used_slots;
      bytes += ragged[page].size();
      charged += Arena::CellBytes(BlockBytes(ragged_headers[page])) + Page::kIndexBytes;
    }
    std::vector<Stretch> stretches;
    std::vector<UnpackedCounts> unpacked(std::max(1, 32768 / sets.slots / 64));
    if (Decide(sets, fixed, fixed_headers, backend, unpacked, stretches) !=
        Decide(sets, ragged, ragged_headers, backend, unpacked, stretches)) {
      std::fprintf(stderr, "the decisions differ\n");
      std::abort();
    }
    const auto n = static_cast<double>(sets.positions);
    std::vector<double> pack, decide;
    double fastest = 1;
    for (int round = 0; round < kRounds; ++round) {
      const auto seconds = [&](PageVersion version) {
        return Seconds([&] { Pack(sets, version); });
      };
      const double of_fixed = seconds(PageVersion::kFixed);
      pack.push_back(seconds(PageVersion::kRagged) / of_fixed);
      const double decide_fixed =
          Seconds([&] { Decide(sets, fixed, fixed_headers, backend, unpacked, stretches); });
      const double decide_ragged =
          Seconds([&] { Decide(sets, ragged, ragged_headers, backend, unpacked, stretches); });
      decide.push_back(decide_ragged / decide_fixed);
      fastest = std::min(fastest, decide_ragged);
    }
    std::printf("| %s | %g | %.2f | %.1f | %.1f | %s | %s | %.1f |\n", pairs.name.c_str(), mass,
                static_cast<double>(used) / n, static_cast<double>(bytes) / n,
                static_cast<double>(charged) / n, Ratio(pack).c_str(), Ratio(decide).c_str(),
                fastest / n * 1e9);
    std::fflush(stdout);
  }
}

// A power law from the last recorded slot on, which holds the rest of the mass.
void Extend(PolicyPairs& pairs, int slots) {
  for (PolicyPair& pair : pairs.positions) {
    double covered = 0;
    for (const float x : pair.behavior) covered += std::exp(double{x});
    const double rest = std::max(1e-6, 1 - covered);
    const double last = std::exp(double{pair.behavior.back()});
    const auto recorded = static_cast<double>(pair.behavior.size());
    const double drift = double{pair.current.back()} - double{pair.behavior.back()};
    // The sum of last * (recorded / k)^s over k beyond, as an integral, falls with s.
    double low = 1.01, high = 60;
    for (int i = 0; i < 60; ++i) {
      const double s = (low + high) / 2;
      const double sum =
          last * std::pow(recorded / (recorded + 0.5), s) * (recorded + 0.5) / (s - 1);
      (sum > rest ? low : high) = s;
    }
    for (int k = static_cast<int>(recorded) + 1; k <= slots; ++k) {
      const double x = std::log(last) + low * std::log(recorded / k);
      pair.behavior.push_back(static_cast<float>(x));
      pair.current.push_back(static_cast<float>(x + drift));
    }
  }
  pairs.slots = slots;
}

int Main() {
  std::printf(
      "| sets | target | slots | bytes per token, page | charged | time to pack, of version 1 | "
      "time to decide | ns per token, fastest |\n|---|---|---|---|---|---|---|---|\n");
  for (const int slots : {10, 100}) {
    const std::string cap = ", K = " + std::to_string(slots);
    Measure(LlmLikePairs("Zipf" + cap, slots, 0.03, 2048));
    const char* folder = std::getenv("SIS_RECORDED_DATA");
    if (folder == nullptr) continue;
    for (const auto& [name, file] : {std::pair("Qwen3 1.7B", "qwen-3-1-7b_cpu.json"),
                                     std::pair("Gemma 3 270M", "gemma-3-270m_cpu.json")}) {
      absl::StatusOr<PolicyPairs> pairs =
          RecordedSetsWithDrift(name + cap, std::string(folder) + "/" + file, 0.03);
      if (!pairs.ok()) {
        std::fprintf(stderr, "%s\n", pairs.status().ToString().c_str());
        return 1;
      }
      Extend(*pairs, slots);
      Measure(*pairs);
    }
  }
  return 0;
}

}  // namespace
}  // namespace sis

int main() { return sis::Main(); }
