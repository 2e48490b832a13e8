// The C++ client's calls are part of the trace that its user names: the server's file says of each
// which span it came from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/api/client.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int kSlots = 4;
constexpr int kVocabulary = 100;
constexpr uint32_t kLength = 64;
const RunRef kRun{"run"};
const std::vector<Slice> kSlices = {{{"a"}, 0, kLength / 2}, {{"a"}, kLength / 2, kLength / 2}};

// A method, and the span that it came from.
std::vector<std::string> SpansIn(const std::string& path) {
  std::vector<std::string> spans;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    for (const auto& span : request["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
      EXPECT_EQ(span["traceId"], std::string(32, 'a'));
      spans.push_back(std::string(span["name"]) + " " + std::string(span["parentSpanId"]));
    }
  }
  return spans;
}

class ClientTracingTest : public testing::Test {
 protected:
  ClientTracingTest() {
    remove(path_.c_str());
    ServerOptions options = LiveServer::Options();
    options.trace_file = path_;
    live_ = std::make_unique<LiveServer>(options);
    client_ = *Client::Connect(live_->grpc_address(),
                               {.micro_batch_bytes = 400, .traceparent = [this] { return now_; }});
    EXPECT_TRUE(
        client_->CreateRun("run", LiveServer::RunRequest("run", kSlots, kVocabulary).config())
            .ok());
  }

  void EnterSpan(char digit, bool sampled = true) {
    now_ = "00-" + std::string(32, 'a') + "-" + std::string(16, digit) + (sampled ? "-01" : "-00");
  }
  void LeaveSpan() { now_.clear(); }

  void Append(const std::string& sequence) {
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::RAW);
    sampling.set_temperature(1);
    const auto stream = client_->Append(kRun, sampling, kVocabulary);
    RecordGenerator generator(kSlots, kVocabulary, 1);
    EXPECT_TRUE(stream->Block({sequence}, 0, 0, generator.NextRecords(kLength).View()).ok());
    EXPECT_TRUE(stream->Finish()->empty());
  }

  // Once all calls have ended.
  std::vector<std::string> Spans() {
    client_.reset();
    live_.reset();
    return SpansIn(path_);
  }

  const std::string path_ = testing::TempDir() + "/spans.json";
  std::string now_;
  std::unique_ptr<LiveServer> live_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTracingTest, EachCallIsPartOfThePresentSpan) {
  EnterSpan('1');
  Append("a");  // confirms the run first
  EnterSpan('2');
  EXPECT_TRUE(client_->FetchTopK(kRun, kSlices).ok());
  EnterSpan('3');
  EXPECT_TRUE(client_->GetRun("run").ok());
  EXPECT_THAT(Spans(), UnorderedElementsAre("sis.v1.RatioService/CreateRun 1111111111111111",
                                            "sis.v1.RatioService/Append 1111111111111111",
                                            "sis.v1.RatioService/FetchTopK 2222222222222222",
                                            "sis.v1.RatioService/GetRun 3333333333333333"));
}

TEST_F(ClientTracingTest, RequestsOfAnEvaluateAreToo) {
  Append("a");
  const std::vector<float> log_probs(kLength * kSlots, -3), sampled(kLength, -3);
  EnterSpan('4');
  EXPECT_TRUE(client_
                  ->Evaluate(kRun, kSlices,
                             GatheredValues{.log_probs = log_probs, .sampled_log_probs = sampled},
                             {.draw = 1})
                  .ok());
  const std::vector<std::string> spans = Spans();
  EXPECT_GT(spans.size(), 1);
  EXPECT_THAT(spans, Each("sis.v1.RatioService/Evaluate 4444444444444444"));
}

TEST_F(ClientTracingTest, NothingIsWrittenOutsideOfSampledSpans) {
  Append("a");
  EnterSpan('5', /*sampled=*/false);
  Append("b");
  LeaveSpan();
  EXPECT_TRUE(client_->GetRun("run").ok());
  EXPECT_THAT(Spans(), IsEmpty());
}

}  // namespace
}  // namespace sis
