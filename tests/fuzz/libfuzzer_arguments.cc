// What libFuzzer is told when it runs as a Bazel test. Bazel's arguments are flags, and files and a
// folder of the corpus; libFuzzer would only replay files, so they become what it starts from.
//
// Failing inputs are written where Bazel keeps them. libFuzzer writes the inputs that reached
// something new to the first folder that it is given. $SIS_FUZZ_CORPUS, set by tools/fuzz, has one
// of each test's own, which outlives the run; else it is gone with the test.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

// Where what is new goes.
fs::path NewInputs() {
  const char* const outlives = std::getenv("SIS_FUZZ_CORPUS");
  const char* const target = std::getenv("TEST_TARGET");
  const char* const gone = std::getenv("TEST_TMPDIR");
  fs::path folder = fs::path(gone == nullptr ? "." : gone) / "new_inputs";
  if (outlives != nullptr && target != nullptr) {
    const std::string_view label = target;
    folder = fs::path(outlives) / label.substr(label.rfind(':') + 1);
  }
  fs::create_directories(folder);
  return folder;
}

std::vector<std::string> TestArguments(int argc, char** argv, std::string_view outputs) {
  std::vector<std::string> arguments = {argv[0]};
  std::vector<std::string> folders = {NewInputs().string()};
  std::string seeds;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("-")) {
      arguments.emplace_back(argument);
    } else if (fs::is_directory(argument)) {
      folders.emplace_back(argument);
    } else {
      seeds.append(seeds.empty() ? "" : ",").append(argument);
    }
  }
  if (!seeds.empty()) arguments.push_back("-seed_inputs=" + seeds);
  arguments.push_back("-artifact_prefix=" + std::string(outputs) + "/");
  arguments.insert(arguments.end(), folders.begin(), folders.end());
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
