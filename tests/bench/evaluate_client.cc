// The C++ client's side of the Evaluate benchmark; see evaluate.py, which starts it.
//
//   evaluate_client ADDRESS RUN FOLDER SEQUENCES LENGTH SLOTS FORM OUTPUT CALL_SEQUENCES STREAM
//
// Maps the current policy's values from FOLDER, then evaluates all sequences once per line of
// standard input, which names the draw, and prints the seconds it took and how many were accepted.
// STREAM is 0 if each call is to be one unary message.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"

namespace {

template <typename T>
std::vector<T> ReadArray(const std::string& path, size_t count) {
  std::vector<T> values(count);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * 4));
  if (!file) {
    std::cerr << "cannot read " << path << '\n';
    std::exit(1);
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 11) return 2;
  // As the server does: what large messages leave behind is used again.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const std::string folder = argv[3];
  const size_t sequences = std::stoul(argv[4]);
  const size_t length = std::stoul(argv[5]);
  const size_t slots = std::stoul(argv[6]);
  const std::string form = argv[7];
  const size_t call_sequences = std::stoul(argv[9]);
  sis::EvaluateOptions options;
  if (!sis::v1::Output_Parse(argv[8], options.outputs.data())) return 2;

  const size_t positions = sequences * length;
  const std::vector<float> sampled = ReadArray<float>(folder + "/current_sampled", positions);
  const std::vector<float> log_probs =
      form == "GATHERED" ? ReadArray<float>(folder + "/current", positions * slots)
                         : std::vector<float>();
  std::vector<float> envelopes;
  std::vector<float> masses;
  std::vector<int32_t> set_ids;
  std::vector<float> set_log_probs;
  if (form == "TOP_K") {
    set_ids = ReadArray<int32_t>(folder + "/set_ids", positions * slots);
    set_log_probs = ReadArray<float>(folder + "/set_log_probs", positions * slots);
  }
  if (form == "REDUCED") {
    envelopes = ReadArray<float>(folder + "/log_envelopes", positions);
    masses = ReadArray<float>(folder + "/covered_masses", positions);
  }
  std::vector<sis::Slice> slices;
  for (size_t i = 0; i < sequences; ++i) {
    slices.push_back({{absl::StrCat(i)}, 0, static_cast<uint32_t>(length)});
  }

  sis::ClientOptions connection;
  if (std::string(argv[10]) == "0") connection.micro_batch_bytes = SIZE_MAX;
  const auto client = sis::Client::Connect(argv[1], connection);
  if (!client.ok()) {
    std::cerr << client.status() << '\n';
    return 1;
  }
  std::cout << "ready" << std::endl;
  while (std::cin >> options.draw) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t accepted = 0;
    for (size_t first = 0; first < sequences; first += call_sequences) {
      const size_t count = std::min(call_sequences, sequences - first);
      const auto part = [&]<typename T>(const std::vector<T>& values, size_t width) {
        return std::span(values).subspan(first * length * width, count * length * width);
      };
      const auto named = std::span<const sis::Slice>(slices).subspan(first, count);
      const auto evaluate = [&](const auto& values) {
        return (*client)->Evaluate({argv[2]}, named, values, options);
      };
      const absl::StatusOr<sis::Evaluation> evaluation =
          form == "REDUCED" ? evaluate(sis::ReducedValues{part(sampled, 1), part(envelopes, 1),
                                                          part(masses, 1)})
          : form == "TOP_K"
              ? evaluate(sis::TopKSetValues{part(set_ids, slots), part(set_log_probs, slots),
                                            part(sampled, 1)})
              : evaluate(sis::GatheredValues{part(log_probs, slots), part(sampled, 1)});
      if (!evaluation.ok()) {
        std::cerr << evaluation.status() << '\n';
        return 1;
      }
      accepted += evaluation->totals.accepted();
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::cout << elapsed.count() << ' ' << accepted << std::endl;
  }
  return 0;
}
