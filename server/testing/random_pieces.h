// A message as gRPC may receive it: cut anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/wire/scattered_bytes.h"

namespace sis {

// The pieces of `bytes`, cut at random places; each stands in memory of its own.
class RandomPieces {
 public:
  RandomPieces(const std::string& bytes, size_t longest, uint32_t seed) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < bytes.size();) {
      pieces_.push_back(bytes.substr(i, random() % (longest + 1)));
      i += pieces_.back().size();
    }
  }
  ScatteredBytes bytes() const {
    return ScatteredBytes(std::vector<std::string_view>(pieces_.begin(), pieces_.end()));
  }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace sis
