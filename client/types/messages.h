// Between plain arrays and the `bytes` of the messages: little-endian, without padding.
#pragma once

#include <bit>
#include <span>
#include <string>

#include "client/types/types.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

static_assert(std::endian::native == std::endian::little);

template <typename T>
std::string ToBytes(std::span<const T> array) {
  return std::string(reinterpret_cast<const char*>(array.data()), array.size_bytes());
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
