#include "server/rpc/rpc_metrics.h"

#include <gtest/gtest.h>

#include <string>

#include "server/testing/scrape.h"

namespace sis {
namespace {

TEST(RpcMetricsTest, CountsByMethodAndCode) {
  prometheus::Registry registry;
  RpcMetrics metrics(registry);
  for (int i = 0; i < 4; ++i) metrics.StartRpc("Evaluate");
  metrics.CountRpc("Evaluate", absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics.CountRpc("Evaluate", absl::StatusCode::kOk, absl::Seconds(3));
  metrics.CountRpc("Evaluate", absl::StatusCode::kNotFound, absl::Microseconds(3));
  const auto series = Scrape(registry.Collect());
  const auto labels = [](const std::string& method, const std::string& type,
                         const std::string& code = "") {
    return (code.empty() ? "{" : "{grpc_code=\"" + code + "\",") + "grpc_method=\"" + method +
           "\",grpc_service=\"sis.v1.RatioService\",grpc_type=\"" + type + "\"";
  };
  const std::string evaluate = labels("Evaluate", "unary");
  EXPECT_EQ(series.at("grpc_server_started_total" + evaluate + "}"), 4);
  EXPECT_EQ(series.at("grpc_server_handled_total" + labels("Evaluate", "unary", "OK") + "}"), 2);
  EXPECT_EQ(series.at("grpc_server_handled_total" + labels("Evaluate", "unary", "NotFound") + "}"),
            1);
  EXPECT_EQ(series.at("grpc_server_handling_seconds_count" + evaluate + "}"), 3);
  EXPECT_NEAR(series.at("grpc_server_handling_seconds_sum" + evaluate + "}"), 3.003003, 1e-9);
  EXPECT_EQ(series.at("grpc_server_handling_seconds_bucket" + evaluate + ",le=\"0.005\"}"), 2);
}

// All methods of the API are exported from the start, with their type.
TEST(RpcMetricsTest, KnowsTheMethods) {
  prometheus::Registry registry;
  const RpcMetrics metrics(registry);
  const auto series = Scrape(registry.Collect());
  for (int i = 0; i < Methods().method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *Methods().method(i);
    const std::string type = method.client_streaming()   ? "bidi_stream"
                             : method.server_streaming() ? "server_stream"
                                                         : "unary";
    EXPECT_TRUE(series.contains("grpc_server_started_total{grpc_method=\"" + method.name() +
                                "\",grpc_service=\"sis.v1.RatioService\",grpc_type=\"" + type +
                                "\"}"))
        << method.name();
  }
}

}  // namespace
}  // namespace sis
