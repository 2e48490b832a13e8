// Reads the golden vectors (tests/golden/generate.py): the files consist of
// hexadecimal tokens.
#pragma once

#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace sis {

class GoldenReader {
 public:
  // `name` is a file of tests/golden. Throws std::runtime_error here and below if the file is not
  // as described.
  explicit GoldenReader(const std::string& name) : name_(name), stream_("tests/golden/" + name) {
    if (!stream_) throw std::runtime_error("cannot open tests/golden/" + name);
    Advance();
  }

  bool AtEnd() const { return token_.empty(); }

  uint8_t Uint8() { return static_cast<uint8_t>(Number(2)); }
  uint32_t Uint32() { return static_cast<uint32_t>(Number(8)); }
  uint64_t Uint64() { return Number(16); }
  int32_t Int32() { return static_cast<int32_t>(Uint32()); }
  int64_t Int64() { return static_cast<int64_t>(Uint64()); }
  float Float() { return std::bit_cast<float>(Uint32()); }

  // A token of any even length.
  std::string Bytes() {
    const std::string token = Take();
    std::string bytes;
    for (size_t i = 0; i < token.size(); i += 2) {
      bytes.push_back(static_cast<char>(Parse(token.substr(i, 2), 2)));
    }
    return bytes;
  }

  // Appends a record with `slots` slots to the arrays.
  void Record(size_t slots, std::vector<int32_t>& sampled_ids,
              std::vector<float>& sampled_log_probs, std::vector<int32_t>& ids,
              std::vector<float>& log_probs) {
    sampled_ids.push_back(Int32());
    sampled_log_probs.push_back(Float());
    for (size_t slot = 0; slot < slots; ++slot) ids.push_back(Int32());
    for (size_t slot = 0; slot < slots; ++slot) log_probs.push_back(Float());
  }

 private:
  uint64_t Number(size_t digits) { return Parse(Take(), digits); }

  uint64_t Parse(const std::string& token, size_t digits) const {
    uint64_t value = 0;
    const char* end = token.data() + token.size();
    if (token.size() != digits || std::from_chars(token.data(), end, value, 16).ptr != end) {
      throw std::runtime_error(name_ + ": not " + std::to_string(digits) + " digits: " + token);
    }
    return value;
  }

  std::string Take() {
    if (AtEnd()) throw std::runtime_error(name_ + " ends early");
    std::string token = std::move(token_);
    Advance();
    return token;
  }

  void Advance() {
    token_.clear();
    stream_ >> token_;
  }

  std::string name_;
  std::ifstream stream_;
  std::string token_;
};

}  // namespace sis
