// Requests of probes and Prometheus to the HTTP port.
#include "server/metrics/http_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class HttpPortTest : public testing::Test {
 protected:
  int Connect() const {
    sockaddr_in server = {};
    server.sin_family = AF_INET;
    server.sin_port = htons(std::stoi(port_->address().substr(port_->address().rfind(':') + 1)));
    inet_pton(AF_INET, "127.0.0.1", &server.sin_addr);
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
    return connection;
  }
  // Sends the request, and returns all bytes of the response.
  std::string Send(const std::string& request) const {
    const int connection = Connect();
    EXPECT_EQ(send(connection, request.data(), request.size(), MSG_NOSIGNAL), request.size());
    std::string answer;
    char buffer[1 << 16];
    for (ssize_t got; (got = recv(connection, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, got);
    }
    close(connection);
    return answer;
  }
  std::string Get(const std::string& path) const {
    return Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
  }
  // Returns 0 if there was no response.
  static int Status(const std::string& answer) {
    return answer.size() < 12 ? 0 : std::stoi(answer.substr(9, 3));
  }
  static std::string Body(const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }

  std::unique_ptr<HttpPort> port_ = *HttpPort::Listen("127.0.0.1:0");
};

TEST_F(HttpPortTest, ProbesTellAliveFromReady) {
  const auto expect = [&](int live, int ready, const std::string& why) {
    EXPECT_EQ(Status(Get("/livez")), live) << why;
    const std::string answer = Get("/readyz");
    EXPECT_EQ(Status(answer), ready) << why;
    EXPECT_THAT(Body(answer), EndsWith(absl::StrCat(why, "\n")));
  };
  expect(200, 503, "starting");
  std::atomic<bool> live = true;
  HttpPort::Condition condition;
  port_->StartServing({.metrics = nullptr,
                       .live = [&] { return live.load(); },
                       .condition = [&] { return condition; }});
  expect(200, 200, "ready");
  condition.what = "read-only";
  expect(200, 200, "ready\nread-only");
  condition.ready = false;
  expect(200, 503, "not ready\nread-only");
  live = false;
  expect(503, 503, "not ready\nread-only");
  port_->StopServing();
  expect(200, 503, "stopping");
}

TEST_F(HttpPortTest, MetricsAreInPrometheusTextFormat) {
  EXPECT_EQ(Body(Get("/metrics")), "");
  prometheus::Registry registry;
  auto& family = prometheus::BuildCounter().Name("x_total").Help("X.").Register(registry);
  family.Add({{"of", "a"}}).Increment(3);
  port_->StartServing({.metrics = [&] { return registry.Collect(); }});
  for (const char* path : {"/metrics", "/metrics?name[]=x_total"}) {
    const std::string answer = Get(path);
    EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
    EXPECT_EQ(Body(answer), "# HELP x_total X.\n# TYPE x_total counter\nx_total{of=\"a\"} 3\n");
  }
  port_->StopServing();
  EXPECT_THAT(Get("/metrics"), HasSubstr("x_total")) << "the last scrape sees the shutdown";
}

TEST_F(HttpPortTest, NothingElseIsThere) {
  port_->StartServing({});
  const std::string body = "Content-Length: 5\r\n\r\nabcde", none = "\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n";
  const struct {
    std::string line, rest;
    int status;
  } cases[] = {
      {"GET /", none, 404},
      {"GET /healthz", none, 404},
      {"GET /metrics/x", none, 404},
      {"GET /readyz/", none, 404},
      {"GET //etc/passwd", none, 404},
      {"GET /%2e%2e/%2e%2e/etc/passwd", none, 404},
      {"GET /../etc/passwd", none, 404},
      {"HEAD /livez", none, 200},
      {"GET /livez", body, 413},
      {"GET /livez", chunked, 413},
      {"POST /livez", body, 405},
      {"PUT /livez", body, 405},
      {"DELETE /livez", none, 405},
      {"OPTIONS /livez", none, 405},
      {"PATCH /livez", body, 405},
      {absl::StrCat("GET /", std::string(100'000, 'a')), none, 400},
      {"GET /livez HTTP/9.9\r\nX:", none, 505},
      {"NONSENSE /livez", none, 400},
  };
  for (const auto& [line, rest, status] : cases) {
    const std::string request = absl::StrCat(line, " HTTP/1.1\r\nHost: x\r\n", rest);
    EXPECT_EQ(Status(Send(request)), status) << line.substr(0, 40);
  }
  for (const std::string& garbage :
       {std::string("\0\0\0\0\r\n\r\n", 8), std::string("GET\r\n\r\n"), std::string("\r\n\r\n")}) {
    EXPECT_NE(Status(Send(garbage)), 200);
  }
  EXPECT_EQ(Body(Send("HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n")), "");
  EXPECT_EQ(Status(Get("/livez")), 200);
}

// Requests that a client could send without end.
const std::string kTrickles[] = {
    "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n",
    "POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    "GET /livez HTTP/1.1\r\nHost: x\r\nX: ",
};

TEST_F(HttpPortTest, SlowClientsAreClosed) {
  for (const std::string& beginning : kTrickles) {
    const int connection = Connect();
    ASSERT_EQ(send(connection, beginning.data(), beginning.size(), 0), beginning.size());
    while (send(connection, "a", 1, MSG_NOSIGNAL) == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    close(connection);
  }
}

TEST_F(HttpPortTest, ProbesAreAnsweredBesideSlowClientsAndAfterMany) {
  for (const size_t count : {4, 40}) {
    std::vector<int> slow;
    for (size_t i = 0; i < count; ++i) {
      slow.push_back(Connect());
      const std::string& beginning = kTrickles[i % std::size(kTrickles)];
      ASSERT_EQ(send(slow.back(), beginning.data(), beginning.size(), 0), beginning.size());
    }
    for (int i = 0; i < 10; ++i) EXPECT_EQ(Status(Get("/livez")), 200) << count;
    for (const int connection : slow) close(connection);
  }
}

TEST(HttpPortAddressTest, ATakenOneIsRefused) {
  const auto first = HttpPort::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const auto second = HttpPort::Listen((*first)->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              testing::AllOf(HasSubstr((*first)->address()), HasSubstr("in use")));
}

TEST(HttpPortAddressTest, HostsMayBeNames) {
  for (const char* host : {"localhost", "0.0.0.0"}) {
    const auto port = HttpPort::Listen(absl::StrCat(host, ":0"));
    ASSERT_TRUE(port.ok()) << port.status();
    EXPECT_FALSE((*port)->address().ends_with(":0")) << (*port)->address();
  }
}

}  // namespace
}  // namespace sis
