// Reads an InspectSequenceResponse, for printing.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Internal if an array is not as long as T positions, or T of K slots, are; T is how many decisions
// there are.
absl::Status CheckArrays(const v1::InspectSequenceResponse& sequence);

// Whether a position with this decision, as `decisions` has it, has a ratio.
inline bool IsScored(char decision) {
  return decision == v1::ACCEPTED || decision == v1::REJECTED || decision == v1::OUTSIDE_TOP_K;
}

// For people: "ID", or "ID attempt N".
std::string NameOf(const v1::SequenceRef& sequence);

// Element i of an array of the API, whose bytes are little-endian as this machine is. Must be
// there.
template <typename T>
T At(const std::string& array, size_t i) {
  T value;
  std::memcpy(&value, array.data() + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace sis
