#include "tests/fuzz/inputs.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"

namespace sis {
namespace {

[[noreturn]] void Refuse(const std::string& path, const char* why) {
  std::fprintf(stderr, "fuzz: %s: %s\n", path.c_str(), why);
  std::exit(2);
}

}  // namespace

std::vector<std::string> ReadInputs(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) Refuse(path, "cannot be read");
  std::vector<std::string> inputs;
  if (!path.ends_with(".base64")) {
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    return inputs;
  }
  for (std::string line; std::getline(file, line);) {
    if (!absl::Base64Unescape(line, &inputs.emplace_back())) Refuse(path, "a line is no base64");
  }
  if (inputs.empty()) Refuse(path, "holds no input");
  return inputs;
}

}  // namespace sis
