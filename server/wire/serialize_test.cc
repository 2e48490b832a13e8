#include "server/wire/serialize.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(slice.begin(), slice.end());
  return bytes;
}

v1::EvaluateResponse Response(size_t count, int slices) {
  v1::EvaluateResponse response;
  response.set_accept_bits(std::string(count / 8, 'a'));
  response.set_decisions(std::string(count, 'd'));
  response.set_ratios(std::string(count * 4, 'r'));
  for (int i = 0; i < slices; ++i) response.add_slice_totals()->set_accepted(i * 1000);
  response.mutable_totals()->set_d(0.5);
  response.set_newly_counted(count);
  return response;
}

TEST(SerializeTest, TheBytesAreProtobufs) {
  for (const size_t count : {0, 1, 100, 4090, 4096, 10000, 1000000}) {
    for (const int slices : {0, 1, 1000}) {
      const v1::EvaluateResponse response = Response(count, slices);
      EXPECT_EQ(Flatten(SerializeInPlace(std::make_shared<v1::EvaluateResponse>(response))),
                response.SerializeAsString());
    }
  }
}

TEST(SerializeTest, NestedArrays) {
  v1::FetchTopKResponse response;
  response.mutable_chunk()->set_length(7);
  response.mutable_chunk()->set_top_k_ids(std::string(100000, 'i'));
  response.mutable_chunk()->set_top_k_log_probs(std::string(100000, 'l'));
  EXPECT_EQ(Flatten(SerializeInPlace(std::make_shared<v1::FetchTopKResponse>(response))),
            response.SerializeAsString());
}

TEST(SerializeTest, LongArraysStayWhereTheyAre) {
  const auto response = std::make_shared<v1::EvaluateResponse>(Response(100000, 3));
  const grpc::ByteBuffer buffer = SerializeInPlace(response);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  const auto* ratios = reinterpret_cast<const uint8_t*>(response->ratios().data());
  EXPECT_TRUE(std::ranges::any_of(slices, [&](const grpc::Slice& slice) {
    return slice.begin() == ratios && slice.size() == response->ratios().size();
  }));
}

TEST(SerializeTest, TheBufferKeepsTheMessageAndLetsItGo) {
  auto response = std::make_shared<v1::EvaluateResponse>(Response(100000, 3));
  const std::weak_ptr<v1::EvaluateResponse> watch = response;
  const std::string expected = response->SerializeAsString();
  {
    const grpc::ByteBuffer buffer = SerializeInPlace(std::move(response));
    EXPECT_FALSE(watch.expired());
    EXPECT_EQ(Flatten(buffer), expected);
  }
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace sis
