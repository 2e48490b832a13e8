// Prints what each encoding of log-probs costs, in bytes per token and in accept rate, and what
// sets as long as their mass do, as the tables of docs/encodings.md. Recorded log-probs are read
// from the folder $SIS_RECORDED_DATA, if it is set.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/mass_cut.h"
#include "kernels/records/record_view.h"
#include "server/cache/page.h"
#include "tests/bench/encodings/accept_rate.h"
#include "tests/bench/encodings/policy_pairs.h"

namespace sis {
namespace {

using enum LogProbEncoding;

constexpr LogProbEncoding kEncodings[] = {kFloat32, kFloat16, kFixed12};
constexpr int kSlots[] = {10, 50, 100};

const char* NameOf(LogProbEncoding encoding) {
  switch (encoding) {
    case kFloat32:
      return "float32";
    case kFloat16:
      return "float16";
    case kFixed12:
      return "12 bits";
  }
  return "";
}

void PrintBytes() {
  constexpr uint32_t kPositions = 64;
  std::printf("| bytes per token |");
  for (const int slots : kSlots) std::printf(" K = %d |", slots);
  std::printf("\n|---|---|---|---|\n| int64 ids, float32 log-probs |");
  for (const int slots : kSlots) std::printf(" %d |", (slots + 1) * (8 + 4));
  std::printf("\n");
  for (const LogProbEncoding encoding : kEncodings) {
    for (const int32_t vocabulary_size : {151936, 262208}) {
      std::printf("| page, %s, ids of %d bits |", NameOf(encoding), IdBits(vocabulary_size));
      for (const int slots : kSlots) {
        const PageHeader header{encoding, slots, vocabulary_size, 0, kPositions};
        std::printf(" %.1f |", static_cast<double>(PageBytes(header)) / kPositions);
      }
      std::printf("\n");
    }
  }
  // Of a long sealed sequence: blocks and index of its pages.
  for (const LogProbEncoding encoding : kEncodings) {
    std::printf("| charged by the cache, %s, 18 bits |", NameOf(encoding));
    for (const int slots : kSlots) {
      const size_t block =
          Arena::CellBytes(PackedBytes({encoding, slots, 151936}, Page::kPositions));
      std::printf(" %.1f |", static_cast<double>(block + Page::kIndexBytes) / Page::kPositions);
    }
    std::printf("\n");
  }
  for (const LogProbEncoding encoding : kEncodings) {
    std::printf("| of which a decision reads, %s |", NameOf(encoding));
    for (const int slots : kSlots) {
      const PageLayout layout = LayOutPage({encoding, slots, 151936, 0, kPositions});
      std::printf(" %.1f |",
                  static_cast<double>(layout.ids.begin - layout.log_probs.begin) / kPositions);
    }
    std::printf("\n");
  }
}

void PrintHeader(const char* first, const std::vector<PolicyPairs>& sets) {
  std::printf("\n| %s |", first);
  for (const PolicyPairs& pairs : sets) std::printf(" %s |", pairs.name.c_str());
  std::printf("\n|---|");
  for (size_t i = 0; i < sets.size(); ++i) std::printf("---|");
  std::printf("\n");
}

void PrintAcceptRates(const std::vector<PolicyPairs>& sets) {
  PrintHeader("% of the accept rate lost", sets);
  std::printf("| (positions) |");
  for (const PolicyPairs& pairs : sets) std::printf(" %zu |", pairs.positions.size());
  std::printf("\n| (accept rate, float32) |");
  std::vector<double> lossless;
  for (const PolicyPairs& pairs : sets) {
    lossless.push_back(AcceptRate(pairs, kFloat32));
    std::printf(" %.4f |", lossless.back());
  }
  std::printf("\n");
  for (const LogProbEncoding behavior : kEncodings) {
    std::printf("| %s |", NameOf(behavior));
    for (size_t i = 0; i < sets.size(); ++i) {
      std::printf(" %.3f |", 100 * (1 - AcceptRate(sets[i], behavior) / lossless[i]));
    }
    std::printf("\n");
  }
  constexpr UniformCode kCodes[] = {
      {"12 bits, step 1/64", 64, 12, false, false},
      {"12 bits, step 1/128, floor -32", 32, 12, false, false},
      {"12 bits, from 1/64 to own lowest", 64, 12, true, false},
      {"12 bits, from own top to own lowest", 64, 12, true, true},
      {"8 bits, from own top to own lowest", 64, 8, true, true},
      {"8 bits, the same, floor -16", 16, 8, true, true},
  };
  PrintHeader("codes considered, on both sides", sets);
  for (const UniformCode& code : kCodes) {
    std::printf("| %s |", code.name);
    for (size_t i = 0; i < sets.size(); ++i) {
      std::printf(" %.3f |", 100 * (1 - AcceptRate(sets[i], code) / lossless[i]));
    }
    std::printf("\n");
  }
}

// Sets as long as their mass, kept in 12 bits. A target of 1 cuts nothing.
void PrintMassTargets(const std::vector<PolicyPairs>& sets) {
  PrintHeader("target: slots; % residual mass; accept rate", sets);
  for (const double mass : {0.9, 0.95, 0.97, 0.99, 0.999, 0.9999, 1.0}) {
    std::printf("| %g |", mass);
    for (PolicyPairs pairs : sets) {
      size_t used = 0;
      double covered = 0;
      std::vector<int32_t> ids(pairs.slots);
      for (PolicyPair& pair : pairs.positions) {
        uint16_t rank = kRankOutside;
        if (mass < 1) CutToMass(mass, ids.size(), ids, pair.behavior, {&rank, 1});
        for (size_t slot = 0; slot < ids.size() && pair.behavior[slot] != kMinusInfinity; ++slot) {
          ++used;
          covered += std::exp(static_cast<double>(pair.current[slot]));
        }
      }
      const auto positions = static_cast<double>(pairs.positions.size());
      std::printf(" %.2f; %.2f; %.4f |", static_cast<double>(used) / positions,
                  100 * (1 - covered / positions), AcceptRate(pairs, kFixed12));
    }
    std::printf("\n");
  }
}

// The recorded models, each as it was recorded twice and with drift.
bool AddRecorded(const std::string& folder, std::vector<PolicyPairs>& sets) {
  const struct {
    const char* name;
    const char* file;
  } models[] = {{"Qwen3 1.7B", "qwen-3-1-7b"}, {"Gemma 3 270M", "gemma-3-270m"}};
  const auto add = [&](absl::StatusOr<PolicyPairs> pairs) {
    if (!pairs.ok()) {
      std::fprintf(stderr, "%s\n", pairs.status().ToString().c_str());
      return false;
    }
    sets.push_back(*std::move(pairs));
    return true;
  };
  for (const auto& [name, file] : models) {
    const std::string path = folder + "/" + file;
    if (!add(RecordedPairs(std::string(name) + ", CPU against GPU", path + "_cpu.json",
                           path + "_cuda.json")) ||
        !add(RecordedSetsWithDrift(std::string(name) + ", drift 0.2", path + "_cpu.json", 0.2))) {
      return false;
    }
  }
  return true;
}

int Main() {
  PrintBytes();
  constexpr int kPositions = 2000;
  std::vector<PolicyPairs> sets;
  for (const double drift : {0.03, 0.2}) {
    for (const int slots : kSlots) {
      const std::string name =
          "K = " + std::to_string(slots) + (drift < 0.1 ? ", mismatch 0.03" : ", drift 0.2");
      sets.push_back(LlmLikePairs(name, slots, drift, kPositions));
    }
  }
  PrintAcceptRates(sets);
  sets.push_back(LlmLikePairs("K = 512, mismatch 0.03", kMaxTopK, 0.03, kPositions));
  sets.push_back(LlmLikePairs("K = 512, drift 0.2", kMaxTopK, 0.2, kPositions));
  PrintMassTargets(sets);
  if (const char* folder = std::getenv("SIS_RECORDED_DATA")) {
    std::vector<PolicyPairs> recorded;
    if (!AddRecorded(folder, recorded)) return 1;
    PrintAcceptRates(recorded);
    PrintMassTargets(recorded);
  }
  return 0;
}

}  // namespace
}  // namespace sis

int main() { return sis::Main(); }
