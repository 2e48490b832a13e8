// Stands in for libFuzzer where the compiler has none: replays a corpus, then a fixed number of
// mutations of it.
//
//   fuzz_test MUTATIONS [FILE...]
//
// The seed is fixed, so that a failure in one run is a failure in all. The input at work is kept in
// memory and written to fuzz_failure in $TEST_UNDECLARED_OUTPUTS_DIR (or the working directory)
// when the process dies of it; passed to the same binary as a FILE, with 0 mutations, it fails
// again.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// The sanitizers call it before they exit; GCC's headers declare it only when one is on.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::vector<uint8_t>;

constexpr size_t kLongestInput = 4096;
constexpr uint64_t kSeed = 20240229;

// Read by a signal handler, hence plain globals.
const uint8_t* current_data = nullptr;
size_t current_size = 0;
char failure_path[4096] = "fuzz_failure";

void SaveCurrentInput() {
  const int file = open(failure_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return;
  const bool saved = write(file, current_data, current_size) == static_cast<ssize_t>(current_size);
  close(file);
  if (saved) dprintf(STDERR_FILENO, "fuzz: the failing input is in %s\n", failure_path);
}

void HandleSignal(int number) {
  SaveCurrentInput();
  signal(number, SIG_DFL);
  raise(number);
}

void SaveInputOnDeath() {
  if (const char* directory = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR")) {
    std::snprintf(failure_path, sizeof(failure_path), "%s/fuzz_failure", directory);
  }
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(SaveCurrentInput);
  signal(SIGABRT, HandleSignal);
  // The address sanitizer explains these two better and then calls the callback.
  if (!__sanitizer_set_death_callback) {
    signal(SIGSEGV, HandleSignal);
    signal(SIGFPE, HandleSignal);
  }
}

void Run(const Input& input) {
  // A copy of exactly this size: a read one byte beyond it is one beyond the allocation.
  const Input exact(input);
  current_data = exact.data();
  current_size = exact.size();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

class Mutator {
 public:
  explicit Mutator(std::vector<Input> corpus) : corpus_(std::move(corpus)) {}

  // One to eight small changes to a member of the corpus.
  Input Next() {
    Input input = corpus_[Below(corpus_.size())];
    for (uint64_t changes = 1 + Below(8); changes > 0; --changes) Change(input);
    input.resize(std::min(input.size(), kLongestInput));
    return input;
  }

 private:
  // Modulo rather than std::uniform_int_distribution, whose numbers differ between standard
  // libraries.
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  void Change(Input& input) {
    if (input.empty()) {
      input.resize(1 + Below(64));
      for (uint8_t& byte : input) byte = static_cast<uint8_t>(random_());
      return;
    }
    const size_t at = Below(input.size());
    const size_t length = 1 + Below(std::min<size_t>(input.size() - at, 32));
    switch (Below(7)) {
      case 0:
        input[at] ^= static_cast<uint8_t>(1u << Below(8));
        break;
      case 1:
        input[at] = static_cast<uint8_t>(random_());
        break;
      case 2:
        input.erase(input.begin() + at, input.begin() + at + length);
        break;
      case 3: {
        const Input repeated(input.begin() + at, input.begin() + at + length);
        input.insert(input.begin() + Below(input.size() + 1), repeated.begin(), repeated.end());
        break;
      }
      case 4:
        WriteExtreme(input, at);
        break;
      case 5: {
        const Input& other = corpus_[Below(corpus_.size())];
        if (other.empty()) break;
        const size_t from = Below(other.size());
        input.resize(Below(input.size() + 1));
        input.insert(input.end(), other.begin() + from, other.end());
        break;
      }
      case 6:
        input.resize(at);
        break;
    }
  }

  // Little-endian values at which lengths, counts and floats go wrong.
  void WriteExtreme(Input& input, size_t at) {
    static constexpr uint64_t kExtremes[] = {
        0,          1,          0x7f,       0xff,       0x7fff,     0xffff,     0x7fffffff,
        0x80000000, 0xffffffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x00000001, 0x7fffffffffffffff,
        ~0ull};
    const uint64_t value = kExtremes[Below(std::size(kExtremes))];
    const size_t width = std::min<size_t>(input.size() - at, size_t{1} << Below(4));
    std::memcpy(input.data() + at, &value, width);
  }

  const std::vector<Input> corpus_;
  std::mt19937_64 random_{kSeed};
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t mutations = 0;
  const char* end = argc > 1 ? argv[1] + std::strlen(argv[1]) : nullptr;
  if (argc < 2 || std::from_chars(argv[1], end, mutations).ptr != end) {
    std::fprintf(stderr, "usage: %s MUTATIONS [FILE...]\n", argv[0]);
    return 2;
  }
  SaveInputOnDeath();
  std::vector<Input> corpus;
  for (int i = 2; i < argc; ++i) {
    for (const std::string& input : sis::ReadInputs(argv[i])) {
      corpus.emplace_back(input.begin(), input.end());
      Run(corpus.back());
    }
  }
  Run({});
  std::printf("fuzz: replayed %zu inputs\n", corpus.size());
  if (corpus.empty()) corpus.emplace_back();
  Mutator mutator(std::move(corpus));
  for (uint64_t i = 0; i < mutations; ++i) Run(mutator.Next());
  std::printf("fuzz: ran %llu mutations\n", static_cast<unsigned long long>(mutations));
  return 0;
}
