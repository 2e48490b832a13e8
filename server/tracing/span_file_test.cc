#include "server/tracing/span_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "server/tracing/request_span.h"

namespace sis {
namespace {

const TraceParent kParent = {.trace_id = "0af7651916cd43dd8448eb211c80319c",
                             .parent_id = "b7ad6b7169203331",
                             .sampled = true};
const SpanSource kSource = {.version = "1.2.3", .host = "here"};

std::string FreshPath(const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name;
  remove(path.c_str());
  return path;
}

// Of all lines.
std::vector<nlohmann::json> SpansIn(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> spans;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    for (const auto& resource : request["resourceSpans"]) {
      for (const auto& scope : resource["scopeSpans"]) {
        spans.insert(spans.end(), scope["spans"].begin(), scope["spans"].end());
      }
    }
  }
  return spans;
}

nlohmann::json AttributeOf(const nlohmann::json& span, const std::string& key) {
  for (const auto& attribute : span["attributes"]) {
    if (attribute["key"] == key) return attribute["value"];
  }
  return nullptr;
}

std::unique_ptr<SpanFile> Opened(const std::string& path) {
  auto file = SpanFile::Open(path, kSource);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

TEST(SpanFileTest, HasWhatCallsDid) {
  const std::string path = FreshPath("spans");
  const absl::Time before = absl::Now();
  {
    const auto file = Opened(path);
    RequestSpan span(*file, kParent, "Evaluate");
    span.SetRun("a run");
    span.SetSize(3, int64_t{1} << 40);
    RequestSpan copy = span;
    copy.End(absl::StatusCode::kInternal);
    span.End(absl::StatusCode::kOk);  // too late
    RequestSpan(*file, kParent, "FetchTopK").End(absl::StatusCode::kNotFound);
    RequestSpan(*file, kParent, "Append");  // never ends
  }
  const std::vector<nlohmann::json> spans = SpansIn(path);
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0]["traceId"], kParent.trace_id);
  EXPECT_EQ(spans[0]["parentSpanId"], kParent.parent_id);
  EXPECT_EQ(spans[0]["name"], "sis.v1.RatioService/Evaluate");
  EXPECT_EQ(spans[0]["kind"], 2);
  EXPECT_EQ(spans[0]["status"]["code"], 2);
  EXPECT_EQ(AttributeOf(spans[0], "sis.run")["stringValue"], "a run");
  EXPECT_EQ(AttributeOf(spans[0], "sis.sequences")["intValue"], "3");
  EXPECT_EQ(AttributeOf(spans[0], "sis.positions")["intValue"], "1099511627776");
  EXPECT_EQ(AttributeOf(spans[0], "rpc.grpc.status_code")["intValue"], "13");
  EXPECT_LE(absl::ToUnixNanos(before), std::stoll(std::string(spans[0]["startTimeUnixNano"])));
  EXPECT_LE(std::stoll(std::string(spans[0]["startTimeUnixNano"])),
            std::stoll(std::string(spans[0]["endTimeUnixNano"])));
  // What the caller did wrong is no error of the server.
  EXPECT_EQ(spans[1]["status"], nlohmann::json::object());
  EXPECT_EQ(AttributeOf(spans[1], "rpc.grpc.status_code")["intValue"], "5");
  EXPECT_TRUE(AttributeOf(spans[1], "sis.run").is_null());
  EXPECT_TRUE(AttributeOf(spans[1], "sis.positions").is_null());
}

TEST(SpanFileTest, WritesOrCountsEachSpanAndKeepsWhatWasThere) {
  constexpr int kThreads = 4;
  constexpr int kSpans = 3000;
  const std::string path = FreshPath("many_spans");
  {
    const auto file = Opened(path);
    RequestSpan(*file, kParent, "GetRun").End(absl::StatusCode::kOk);
  }
  int64_t dropped = 0;
  {
    const auto file = Opened(path);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&file] {
        for (int i = 0; i < kSpans; ++i) {
          RequestSpan(*file, kParent, "Append").End(absl::StatusCode::kOk);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    dropped = file->dropped();
  }
  std::set<std::string> ids;
  for (const nlohmann::json& span : SpansIn(path)) ids.insert(span["spanId"]);
  EXPECT_EQ(ids.size() + dropped, 1 + kThreads * kSpans);
}

// As on a full disk: a line ends in the middle. Those after it can be read again.
TEST(SpanFileTest, CountsWhatHasNoRoom) {
  const std::string path = FreshPath("no_room");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  {
    const auto file = Opened(path);
    const rlimit little = {.rlim_cur = 100, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
    for (int i = 1; i <= 2; ++i) {
      RequestSpan(*file, kParent, "Append").End(absl::StatusCode::kOk);
      while (file->dropped() < i) absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    RequestSpan(*file, kParent, "FetchTopK").End(absl::StatusCode::kOk);
  }
  std::ifstream written(path);
  std::string torn, whole;
  ASSERT_TRUE(std::getline(written, torn) && std::getline(written, whole));
  EXPECT_EQ(torn.size(), 100);
  EXPECT_TRUE(nlohmann::json::accept(whole)) << whole;
}

TEST(SpanFileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(SpanFile::Open("/dev/null", kSource).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string path = FreshPath("a_folder");
  ASSERT_EQ(mkdir(path.c_str(), S_IRWXU), 0);
  EXPECT_EQ(SpanFile::Open(path, kSource).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string fifo = FreshPath("a_fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), S_IRWXU), 0);
  EXPECT_EQ(SpanFile::Open(fifo, kSource).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sis
