#include "server/rpc/rpc_metrics.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <sstream>
#include <string>

#include "server/rpc/methods.h"

namespace sis {
namespace {

// The exposition as a map from series, as written there, to value.
std::map<std::string, double> Scrape(const prometheus::Registry& registry) {
  std::istringstream text(prometheus::TextSerializer().Serialize(registry.Collect()));
  std::map<std::string, double> series;
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    EXPECT_TRUE(series.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << "twice: " << line;
  }
  return series;
}

TEST(RpcMetricsTest, CountsByMethodAndCode) {
  prometheus::Registry registry;
  RpcMetrics metrics(registry);
  for (int i = 0; i < 4; ++i) metrics.StartRpc("Evaluate");
  metrics.CountRpc("Evaluate", absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics.CountRpc("Evaluate", absl::StatusCode::kOk, absl::Seconds(3));
  metrics.CountRpc("Evaluate", absl::StatusCode::kNotFound, absl::Microseconds(3));
  const auto series = Scrape(registry);
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

// All methods of the API are there from the start, by their type.
TEST(RpcMetricsTest, KnowsTheMethods) {
  prometheus::Registry registry;
  const RpcMetrics metrics(registry);
  const auto series = Scrape(registry);
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
