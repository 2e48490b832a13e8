// Reads an InspectSequenceResponse, for printing.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Element i of an array of the API, whose bytes are little-endian as this machine is.
template <typename T>
T At(const std::string& array, size_t i) {
  T value;
  std::memcpy(&value, array.data() + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace sis
