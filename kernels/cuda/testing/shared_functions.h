// Runs on the device the functions that it shares with the host, value by value. CUDA kernels are
// built on them. A test compares both, bit by bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/block/block.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/philox.h"
#include "kernels/numerics/sums.h"

namespace sis::cuda {

// Returns true if there is a device; otherwise sets `why`.
bool HasDevice(std::string* why);

struct DecideInput {
  float behavior_sampled_log_prob;
  float current_sampled_log_prob;
  Envelope envelope;
  bool in_top_k;
  uint64_t sequence_key;
  uint32_t position;
  uint64_t draw;
};

struct DecideOutput {
  PositionResult result;
  float log_modified_ratio;
  float modified_ratio;
  Sums sums;  // of this position alone
};

struct CodeInput {
  uint32_t code;
  uint32_t multiplier;
};

// Each returns an empty string, or CUDA's error. All spans of a call must have the same length.
std::string Exp32(std::span<const float> x, std::span<float> y);
std::string Decide(std::span<const DecideInput> in, std::span<DecideOutput> out);
std::string Fixed16(std::span<const CodeInput> in, std::span<float> out);

// Decides one input, on the host or on the device.
SIS_HOST_DEVICE inline DecideOutput DecideOne(const DecideInput& in) {
  const PhiloxBlock uniforms = AcceptanceUniforms(in.sequence_key, in.position / 4, in.draw);
  DecideOutput out{};
  out.result = sis::Decide(in.behavior_sampled_log_prob, in.current_sampled_log_prob, in.envelope,
                           in.in_top_k, uniforms.word[in.position % 4]);
  out.log_modified_ratio = out.result.log_modified_ratio();
  out.modified_ratio = out.result.modified_ratio();
  AddPosition(out.result, in.envelope, out.sums);
  return out;
}

}  // namespace sis::cuda
