// Arguments of libFuzzer when it runs as a Bazel test. Bazel's arguments are flags and files of the
// corpus. libFuzzer would only replay the files, so their contents become its initial corpus.
//
// Failing inputs are written where Bazel keeps them. libFuzzer writes the inputs that reached
// something new to the first folder that it is given. $SIS_FUZZ_CORPUS, set by tools/fuzz, has one
// of each test's own, which outlives the run; else it is gone with the test.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/inputs.h"

namespace {

namespace fs = std::filesystem;

// A folder that is gone with the test.
fs::path Temporary(std::string_view name) {
  const char* const parent = std::getenv("TEST_TMPDIR");
  const fs::path folder = fs::path(parent == nullptr ? "." : parent) / name;
  fs::create_directories(folder);
  return folder;
}

// Returns the folder for new inputs.
fs::path NewInputs() {
  const char* const outlives = std::getenv("SIS_FUZZ_CORPUS");
  const char* const target = std::getenv("TEST_TARGET");
  fs::path folder = Temporary("new_inputs");
  if (outlives != nullptr && target != nullptr) {
    const std::string_view label = target;
    folder = fs::path(outlives) / label.substr(label.rfind(':') + 1);
  }
  fs::create_directories(folder);
  return folder;
}

std::vector<std::string> TestArguments(int argc, char** argv, std::string_view outputs) {
  std::vector<std::string> arguments = {argv[0]};
  const fs::path kept = Temporary("kept_inputs");
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("-")) {
      arguments.emplace_back(argument);
      continue;
    }
    for (const std::string& input : sis::ReadInputs(argv[i])) {
      std::ofstream(kept / std::to_string(files++), std::ios::binary) << input;
    }
  }
  arguments.push_back("-artifact_prefix=" + std::string(outputs) + "/");
  arguments.push_back(NewInputs().string());
  arguments.push_back(kept.string());
  return arguments;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const char* const outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  if (outputs == nullptr) return 0;  // run by hand
  // libFuzzer keeps the pointers for as long as the process lives.
  static std::vector<std::string> arguments = TestArguments(*argc, *argv, outputs);
  static std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  *argc = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  *argv = pointers.data();
  return 0;
}
