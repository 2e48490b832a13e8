// Random numbers that depend on nothing but what they are drawn for: the same bits everywhere.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace sis::study {

// The finaliser of SplitMix64 (Steele et al., 2014).
inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

inline uint64_t HashOf(std::initializer_list<uint64_t> values) {
  uint64_t hash = 0;
  for (const uint64_t value : values) hash = Mix(hash ^ value);
  return hash;
}

// In (0, 1).
inline double Uniform(uint64_t hash) { return (static_cast<double>(hash >> 12) + 0.5) * 0x1p-52; }

// Mean 0 and variance 1, nearly normal: the sum of twelve uniforms, which needs no logarithm or
// cosine that libraries round differently.
inline float Normal(uint64_t hash) {
  double sum = -6.0;
  for (uint64_t i = 0; i < 12; ++i) sum += Uniform(HashOf({hash, i}));
  return static_cast<float>(sum);
}

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}

  uint64_t Bits() { return HashOf({seed_, drawn_++}); }
  double InUnitInterval() { return Uniform(Bits()); }
  // In [0, limit).
  int Below(int limit) { return static_cast<int>(InUnitInterval() * limit); }

 private:
  uint64_t seed_;
  uint64_t drawn_ = 0;
};

}  // namespace sis::study
