// Between plain arrays and the `bytes` of the messages: little-endian, without padding.
#pragma once

#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/types/types.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

static_assert(std::endian::native == std::endian::little);

template <typename T>
std::string ToBytes(std::span<const T> array) {
  return std::string(reinterpret_cast<const char*>(array.data()), array.size_bytes());
}

// Appends the array in `bytes` to `array`. Internal, naming the field, if it does not hold `count`
// elements.
template <typename T>
absl::Status AppendFromBytes(const std::string& bytes, size_t count, absl::string_view field,
                             std::vector<T>& array) {
  if (bytes.size() != count * sizeof(T)) {
    return absl::InternalError(absl::StrCat("the server's ", field, " holds ", bytes.size(),
                                            " bytes, not ", count * sizeof(T)));
  }
  if (count == 0) return absl::OkStatus();
  array.resize(array.size() + count);
  std::memcpy(&array[array.size() - count], bytes.data(), bytes.size());
  return absl::OkStatus();
}

inline void ToMessage(const RunRef& run, v1::RunRef& message) {
  message.set_run_id(run.run_id);
  message.set_incarnation(run.incarnation);
}

inline void ToMessage(const SequenceRef& sequence, v1::SequenceRef& message) {
  message.set_id(sequence.id);
  message.set_attempt(sequence.attempt);
}

inline void ToMessage(const Slice& slice, v1::Slice& message) {
  ToMessage(slice.sequence, *message.mutable_sequence());
  message.set_first_position(slice.first_position);
  message.set_length(slice.length);
  if (slice.record_digest) message.set_record_digest(*slice.record_digest);
}

inline SequenceRef FromMessage(const v1::SequenceRef& message) {
  return {message.id(), message.attempt()};
}

inline Slice FromMessage(const v1::Slice& message) {
  Slice slice{FromMessage(message.sequence()), message.first_position(), message.length()};
  if (message.has_record_digest()) slice.record_digest = message.record_digest();
  return slice;
}

}  // namespace sis
