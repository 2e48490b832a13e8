// Whether two FetchTopKs of the client brought the same.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string_view>

#include "client/types/types.h"

namespace sis {

// As bytes: NaN equals itself.
template <typename T>
std::string_view BytesOf(std::span<const T> array) {
  return {reinterpret_cast<const char*>(array.data()), array.size_bytes()};
}

// All but the lease and where the arrays lie.
inline void ExpectSameRecords(const TopKRecords& got, const TopKRecords& expected) {
  EXPECT_EQ(got.top_k, expected.top_k);
  ASSERT_EQ(got.slices.size(), expected.slices.size());
  for (size_t i = 0; i < got.slices.size(); ++i) {
    EXPECT_EQ(got.slices[i].sequence, expected.slices[i].sequence);
    EXPECT_EQ(got.slices[i].first_position, expected.slices[i].first_position);
    EXPECT_EQ(got.slices[i].length, expected.slices[i].length);
    EXPECT_EQ(got.slices[i].record_digest, expected.slices[i].record_digest);
  }
  ASSERT_EQ(got.missing.size(), expected.missing.size());
  for (size_t i = 0; i < got.missing.size(); ++i) {
    EXPECT_EQ(got.missing[i].SerializeAsString(), expected.missing[i].SerializeAsString());
  }
  EXPECT_EQ(BytesOf(got.sampled_ids), BytesOf(expected.sampled_ids));
  EXPECT_EQ(BytesOf(got.sampled_log_probs), BytesOf(expected.sampled_log_probs));
  EXPECT_EQ(BytesOf(got.ids), BytesOf(expected.ids));
  EXPECT_EQ(BytesOf(got.log_probs), BytesOf(expected.log_probs));
}

}  // namespace sis
