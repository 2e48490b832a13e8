// The C++ client's side of the Evaluate benchmark; see evaluate.py, which starts it.
//
//   evaluate_client ADDRESS RUN FOLDER SEQUENCES LENGTH SLOTS FORM OUTPUT CALL_SEQUENCES FETCH
//
// Maps the current policy's values from FOLDER, then evaluates all sequences once per line of
// standard input, which names the draw, and prints the seconds it took and how many were accepted.
// FORM is GATHERED or REDUCED. FETCH is 1 if each call is to fetch its records first.
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/api/client.h"

namespace {

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << message << '\n';
  std::exit(1);
}

// A file of `count` elements. Processes that map it share its pages.
template <typename T>
std::span<const T> MapArray(const std::string& path, size_t count) {
  const int file = open(path.c_str(), O_RDONLY);
  if (file < 0) Fail("cannot read " + path);
  void* const memory =
      mmap(nullptr, count * sizeof(T), PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) Fail("cannot map " + path);
  close(file);
  return {static_cast<const T*>(memory), count};
}

// The current policy's values; those that the form doesn't have are empty.
struct Values {
  std::span<const float> sampled, log_probs, envelopes, masses;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 11) return 2;
  // As in the server: memory of large messages is used again.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const std::string folder = argv[3];
  const size_t sequences = std::stoul(argv[4]);
  const size_t length = std::stoul(argv[5]);
  const size_t slots = std::stoul(argv[6]);
  const std::string form = argv[7];
  const bool fetch = argv[10] == std::string("1");
  const size_t call_sequences = std::stoul(argv[9]);
  sis::EvaluateOptions options;
  if (!sis::v1::Output_Parse(argv[8], options.outputs.data())) return 2;

  const size_t positions = sequences * length;
  const size_t values_per_form = positions * slots;
  Values values;
  values.sampled = MapArray<float>(folder + "/current_sampled", positions);
  if (form == "REDUCED") {
    values.envelopes = MapArray<float>(folder + "/log_envelopes", positions);
    values.masses = MapArray<float>(folder + "/covered_masses", positions);
  } else {
    values.log_probs = MapArray<float>(folder + "/current", values_per_form);
  }
  std::vector<sis::Slice> slices;
  for (size_t i = 0; i < sequences; ++i) {
    slices.push_back({{absl::StrCat(i)}, 0, static_cast<uint32_t>(length)});
  }

  const auto client = sis::Client::Connect(argv[1], {});
  if (!client.ok()) Fail(client.status().ToString());
  std::cout << "ready" << std::endl;
  while (std::cin >> options.draw) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t accepted = 0;
    for (size_t first = 0; first < sequences; first += call_sequences) {
      const size_t count = std::min(call_sequences, sequences - first);
      const auto part = [&]<typename T>(std::span<const T> array, size_t width) {
        return array.subspan(first * length * width, count * length * width);
      };
      const sis::RunRef run{argv[2]};
      const auto named = std::span<const sis::Slice>(slices).subspan(first, count);
      const std::span<const float> sampled = part(values.sampled, 1);
      sis::TopKRecords records;
      if (fetch) {
        auto fetched = (*client)->FetchTopK(run, named);
        if (!fetched.ok()) Fail(fetched.status().ToString());
        records = *std::move(fetched);
      }
      const auto evaluate = [&](const auto& current) {
        return (*client)->Evaluate(run, fetch ? records.slices : named, current, options);
      };
      const absl::StatusOr<sis::Evaluation> evaluation =
          form == "REDUCED" ? evaluate(sis::ReducedValues{sampled, part(values.envelopes, 1),
                                                          part(values.masses, 1)})
                            : evaluate(sis::GatheredValues{part(values.log_probs, slots), sampled});
      if (!evaluation.ok()) Fail(evaluation.status().ToString());
      accepted += evaluation->totals.accepted();
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::cout << elapsed.count() << ' ' << accepted << std::endl;
  }
  return 0;
}
