// What libFuzzer is told when it runs as a Bazel test. Bazel's arguments are flags and the files of
// the corpus; libFuzzer would only replay files, so they become what it starts from.
//
// Failing inputs are written where Bazel keeps them. $SIS_FUZZ_CORPUS, set by tools/fuzz, is a
// folder that outlives the run: each test has a folder of its own in it, with the inputs that
// reached something new.

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::vector<std::string> TestArguments(int argc, char** argv, std::string_view outputs) {
  std::vector<std::string> arguments = {argv[0]};
  std::string seeds;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("-")) {
      arguments.emplace_back(argument);
    } else {
      seeds.append(seeds.empty() ? "" : ",").append(argument);
    }
  }
  if (!seeds.empty()) arguments.push_back("-seed_inputs=" + seeds);
  arguments.push_back("-artifact_prefix=" + std::string(outputs) + "/");
  const char* const corpus = std::getenv("SIS_FUZZ_CORPUS");
  const char* const target = std::getenv("TEST_TARGET");
  if (corpus != nullptr && target != nullptr) {
    const std::string_view name =
        std::string_view(target).substr(std::string(target).rfind(':') + 1);
    const std::filesystem::path folder = std::filesystem::path(corpus) / name;
    std::filesystem::create_directories(folder);
    arguments.push_back(folder.string());
  }
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
