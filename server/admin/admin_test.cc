// The admin port as browsers, probes and Prometheus see it.
#include "server/admin/admin.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/page/page_files.h"
#include "server/admin/http_server.h"

namespace sis {
namespace {

using testing::Test;

// Answers what the tests look at, and nothing else.
class Service final : public v1::RatioService::Service {
  grpc::Status GetRun(grpc::ServerContext*, const v1::GetRunRequest* request,
                      v1::GetRunResponse* response) override {
    if (request->run_id() != "a b/ü") {
      return {grpc::StatusCode::NOT_FOUND, absl::StrCat("run '", request->run_id(), "' \"new\"?")};
    }
    response->mutable_run()->set_run_id(request->run_id());
    response->mutable_run()->set_policy_version(uint64_t{1} << 60);
    return grpc::Status::OK;
  }
  grpc::Status InspectSequence(grpc::ServerContext*, const v1::InspectSequenceRequest* request,
                               v1::InspectSequenceResponse* response) override {
    response->set_first_position(request->sequence().attempt());
    response->set_decisions(request->sequence().id());
    return grpc::Status::OK;
  }
  // Of no sequence; waits until somebody lets it go.
  grpc::Status InspectRun(grpc::ServerContext*, const v1::InspectRunRequest*,
                          v1::InspectRunResponse*) override {
    inspects.set_value();
    go_on.get_future().wait();
    return grpc::Status::OK;
  }

 public:
  std::promise<void> inspects, go_on;
};

std::string Gunzipped(std::string bytes) {
  z_stream stream = {};
  EXPECT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  std::string plain(1 << 20, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = bytes.size();
  stream.next_out = reinterpret_cast<Bytef*>(plain.data());
  stream.avail_out = plain.size();
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  plain.resize(stream.total_out);
  inflateEnd(&stream);
  return plain;
}

class AdminTest : public Test {
 protected:
  AdminTest() : admin_(*Admin::Listen("127.0.0.1:0")) {}

  void StartServing(const Admin::Access& access = {}) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    grpc_server_ = builder.BuildAndStart();
    admin_->StartServing(grpc_server_->InProcessChannel({}), access);
  }

  int Connect() {
    const std::string address = admin_->address();
    sockaddr_in server = {};
    server.sin_family = AF_INET;
    server.sin_port = htons(std::stoi(address.substr(address.rfind(':') + 1)));
    inet_pton(AF_INET, "127.0.0.1", &server.sin_addr);
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
    return connection;
  }
  // All that comes back of a request.
  std::string Send(const std::string& request) {
    const int connection = Connect();
    EXPECT_EQ(send(connection, request.data(), request.size(), 0), request.size());
    std::string answer;
    char buffer[1 << 16];
    for (ssize_t got; (got = recv(connection, buffer, sizeof buffer, 0)) > 0;) {
      answer.append(buffer, got);
    }
    close(connection);
    return answer;
  }
  std::string Get(const std::string& path, const std::string& headers = "") {
    return Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n", headers, "\r\n"));
  }
  static int Status(const std::string& answer) { return std::stoi(answer.substr(9, 3)); }
  static std::string Body(const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n") + 4);
  }

  Service service_;
  std::unique_ptr<grpc::Server> grpc_server_;
  std::promise<void> release_;
  std::unique_ptr<Admin> admin_;
};

TEST_F(AdminTest, ProbesTellAliveFromReady) {
  EXPECT_EQ(Status(Get("/healthz")), 200);
  EXPECT_EQ(Status(Get("/readyz")), 503);
  EXPECT_EQ(Body(Get("/readyz")), "starting\n");
  EXPECT_EQ(Status(Get("/api/ListRuns")), 503);
  StartServing();
  EXPECT_EQ(Body(Get("/readyz")), "ready\n");
  admin_->StopServing();
  EXPECT_EQ(Status(Get("/healthz")), 200);
  EXPECT_EQ(Status(Get("/readyz")), 503);
  EXPECT_EQ(Body(Get("/readyz")), "stopping\n");
  EXPECT_EQ(Status(Get("/api/ListRuns")), 503);
}

TEST_F(AdminTest, CallsAreAnsweredInJson) {
  StartServing();
  const std::string answer = Get("/api/GetRun?run_id=a%20b%2F%C3%BC");
  EXPECT_EQ(Status(answer), 200);
  EXPECT_TRUE(absl::StrContains(answer, "Content-Type: application/json\r\n"));
  EXPECT_TRUE(absl::StrContains(answer, "Cache-Control: no-store\r\n"));
  EXPECT_TRUE(absl::StrContains(Body(answer), R"("policyVersion":"1152921504606846976")"));
  EXPECT_TRUE(absl::StrContains(Body(answer), R"("sequences":"0")")) << "every field is there";
  const std::string sequence = Body(Get("/api/InspectSequence?run_id=r&sequence=abc&attempt=7"));
  EXPECT_TRUE(absl::StrContains(sequence, R"("firstPosition":7)"));
  EXPECT_TRUE(absl::StrContains(sequence, R"("decisions":"YWJj")"));
}

TEST_F(AdminTest, ErrorsAreAnsweredInJsonToo) {
  StartServing();
  const std::string unknown = Get("/api/GetRun?run_id=nowhere");
  EXPECT_EQ(Status(unknown), 404);
  EXPECT_TRUE(absl::StrContains(Body(unknown), R"("code":"NOT_FOUND")"));
  EXPECT_TRUE(absl::StrContains(Body(unknown), R"("message":"run 'nowhere' \"new\"?")"));
  const std::string number = Get("/api/InspectSequence?run_id=r&sequence=a&attempt=-1");
  EXPECT_EQ(Status(number), 400);
  EXPECT_TRUE(absl::StrContains(Body(number), "attempt: '-1' is not a number"));
  EXPECT_EQ(Status(Get("/api/DeleteRun?run_id=r")), 404) << "it would change something";
  EXPECT_EQ(Status(Get("/api/GetServer")), 500) << "not implemented by this service";
}

TEST_F(AdminTest, OneDiagnosisIsMadeAtATime) {
  StartServing();
  EXPECT_EQ(Status(Get("/api/Diagnose?run_id=nowhere")), 404);
  const std::string path = "/api/Diagnose?run_id=a%20b%2F%C3%BC";
  std::string answer;
  std::thread first([&] { answer = Get(path); });
  service_.inspects.get_future().wait();
  const std::string second = Get(path);
  EXPECT_EQ(Status(second), 503);
  EXPECT_TRUE(absl::StrContains(Body(second), "another diagnosis is being made"));
  service_.go_on.set_value();
  first.join();
  EXPECT_EQ(Status(answer), 404);
  EXPECT_TRUE(absl::StrContains(Body(answer), "nothing has been evaluated"));
}

TEST_F(AdminTest, ThePageIsCarriedInsideWithWhatItNeeds) {
  const std::string page = Get("/");
  EXPECT_EQ(Status(page), 200);
  EXPECT_TRUE(absl::StrContains(page, "Content-Type: text/html"));
  for (const PageFile& file : PageFiles()) {
    const std::string answer = Get(absl::StrCat("/", file.name));
    EXPECT_EQ(Status(answer), 200) << file.name;
    EXPECT_EQ(Body(answer), file.bytes) << file.name;
    EXPECT_TRUE(absl::StrContains(answer, "Content-Security-Policy: default-src 'none';"));
    EXPECT_TRUE(absl::StrContains(answer, "X-Content-Type-Options: nosniff\r\n"));
    const std::string tag = absl::StrCat("\"", file.digest, "\"");
    EXPECT_TRUE(absl::StrContains(answer, absl::StrCat("ETag: ", tag, "\r\n")));
    const std::string again =
        Get(absl::StrCat("/", file.name), absl::StrCat("If-None-Match: ", tag, "\r\n"));
    EXPECT_EQ(Status(again), 304) << file.name;
    EXPECT_EQ(Body(again), "");
  }
}

TEST_F(AdminTest, TextsOfTokensAreThoseOfTheTokenizer) {
  EXPECT_EQ(Body(Get("/token_texts.json")), "null\n") << "there is no tokenizer";
  const std::string file = testing::TempDir() + "/tokenizer.json";
  std::ofstream(file) << R"({"model": {"vocab": {"</s>": 0, "\u00e9\"": 7}}})";
  admin_ = *Admin::Listen("127.0.0.1:0", file);
  const std::string answer = Get("/token_texts.json");
  EXPECT_EQ(Status(answer), 200);
  EXPECT_EQ(Body(answer), "{\"0\":\"</s>\",\"7\":\"é\\\"\"}");
  EXPECT_TRUE(absl::StrContains(answer, "Content-Type: application/json"));
  std::ofstream(file) << "[]";
  const absl::Status refused = Admin::Listen("127.0.0.1:0", file).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "tokenizer: " + file)) << refused;
}

TEST_F(AdminTest, NothingElseIsThere) {
  for (const char* path : {"/nowhere", "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
                           "//etc/passwd", "/index.html/", "/api", "/metrics/x"}) {
    const int status = Status(Get(path));
    EXPECT_TRUE(status == 404 || status == 400) << path << ": " << status;
  }
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string answer =
        Send(absl::StrCat(method, " / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"));
    EXPECT_EQ(Status(answer), 405) << method;
  }
  const std::string head = Send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(Status(head), 200);
  EXPECT_EQ(Body(head), "");
}

TEST_F(AdminTest, MetricsAreOfWhatIsShown) {
  EXPECT_EQ(Body(Get("/metrics")), "");
  const auto registry = std::make_shared<prometheus::Registry>();
  prometheus::BuildCounter().Name("x_total").Help("X.").Register(*registry).Add({}).Increment(3);
  admin_->Show([registry] { return registry->Collect(); });
  const std::string answer = Get("/metrics");
  EXPECT_TRUE(absl::StrContains(answer, "Content-Type: text/plain; version=0.0.4"));
  EXPECT_EQ(Body(answer), "# HELP x_total X.\n# TYPE x_total counter\nx_total 3\n");
}

TEST_F(AdminTest, GarbageAndMuchAtOnceDoNoHarm) {
  for (const std::string& garbage :
       {std::string("\0\0\0\0\r\n\r\n", 8), std::string("GET\r\n\r\n"),
        absl::StrCat("GET /", std::string(100'000, 'a'), " HTTP/1.1\r\n\r\n"),
        std::string("GET / HTTP/9.9\r\n\r\n"), std::string("GET /%zz%00 HTTP/1.1\r\n\r\n")}) {
    Send(garbage);
  }
  std::vector<std::thread> clients;
  for (int client = 0; client < 16; ++client) {
    clients.emplace_back([&] {
      for (int i = 0; i < 8; ++i) EXPECT_EQ(Status(Get("/healthz")), 200);
    });
  }
  for (std::thread& client : clients) client.join();
}

// Connections that send a byte now and then, as many at once as they are told, each opened again
// when the server closes it.
class Tricklers {
 public:
  Tricklers(std::function<int()> connect, int count, const std::string& beginning)
      : thread_([=, this] {
          std::vector<int> connections(count, -1);
          while (!stopped_) {
            for (int& connection : connections) {
              if (connection >= 0 && send(connection, "a", 1, MSG_NOSIGNAL) == 1) continue;
              if (connection >= 0) close(connection);
              connection = connect();
              (void)!send(connection, beginning.data(), beginning.size(), MSG_NOSIGNAL);
            }
            ++rounds_;
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
          for (const int connection : connections) close(connection);
        }) {}
  ~Tricklers() {
    stopped_ = true;
    thread_.join();
  }
  void AwaitRounds(int rounds) {
    while (rounds_ < rounds) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::atomic<bool> stopped_ = false;
  std::atomic<int> rounds_ = 0;
  std::thread thread_;
};

// What goes on for ever if whoever sends it does.
const std::string kTrickles[] = {
    "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nX: ",
};

TEST_F(AdminTest, WhoeverTricklesHoldsUpNobody) {
  StartServing();
  for (const std::string& beginning : kTrickles) {
    Tricklers tricklers([this] { return Connect(); }, 300, beginning);
    tricklers.AwaitRounds(3);
    for (int i = 0; i < 10; ++i) {
      for (const char* path : {"/healthz", "/readyz", "/metrics", "/api/GetRun?run_id=r"}) {
        const int connection = Connect();
        const timeval patience{.tv_sec = 2, .tv_usec = 0};
        setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n");
        EXPECT_EQ(send(connection, request.data(), request.size(), 0), request.size());
        char first[9] = {};
        EXPECT_EQ(recv(connection, first, sizeof first, MSG_WAITALL), sizeof first)
            << path << " beside: " << beginning;
        EXPECT_EQ(std::string(first, sizeof first), "HTTP/1.1 ");
        close(connection);
      }
    }
  }
}

// Whatever it sends, and however long it would.
TEST_F(AdminTest, WhoeverTricklesAloneIsClosed) {
  StartServing();
  for (const std::string& beginning : kTrickles) {
    const int connection = Connect();
    ASSERT_EQ(send(connection, beginning.data(), beginning.size(), 0), beginning.size());
    while (send(connection, "a", 1, MSG_NOSIGNAL) == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    close(connection);
  }
}

int OpenDescriptors() {
  int count = 0;
  for (auto entry = std::filesystem::directory_iterator("/proc/self/fd");
       entry != std::filesystem::directory_iterator(); ++entry) {
    ++count;
  }
  return count;
}

TEST_F(AdminTest, BodiesThatAreRefusedHoldFewDescriptors) {
  StartServing();
  const std::string& request = kTrickles[0];
  constexpr int kConnections = 400;
  const int before = OpenDescriptors();
  std::vector<int> connections;
  for (int i = 0; i < kConnections; ++i) {
    connections.push_back(Connect());
    ASSERT_EQ(send(connections.back(), request.data(), request.size(), 0), request.size());
    char byte;
    while (recv(connections.back(), &byte, 1, 0) == 1) continue;  // the whole answer
  }
  const int of_server = OpenDescriptors() - before - kConnections;
  EXPECT_LE(of_server, HttpServer::kMaxLeaving + 8);
  for (const int connection : connections) close(connection);
}

TEST_F(AdminTest, HandlersThatWaitHoldUpNoProbe) {
  StartServing();
  admin_->Show([released = release_.get_future().share()] {
    released.wait();
    return std::vector<prometheus::MetricFamily>();
  });
  constexpr int kScrapes = HttpServer::kMaxAnswering + 36;
  std::atomic<int> refused = 0;
  std::vector<std::thread> scrapes;
  for (int i = 0; i < kScrapes; ++i) {
    scrapes.emplace_back([&] { refused += Status(Get("/metrics")) == 503; });
  }
  while (refused < kScrapes - static_cast<int>(HttpServer::kMaxAnswering)) {
    std::this_thread::yield();  // until as many wait as may
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Status(Get("/healthz")), 200);
    EXPECT_EQ(Status(Get("/readyz")), 200);
  }
  release_.set_value();
  for (std::thread& scrape : scrapes) scrape.join();
  EXPECT_EQ(refused, kScrapes - static_cast<int>(HttpServer::kMaxAnswering));
  EXPECT_EQ(Status(Get("/metrics")), 200);
}

TEST_F(AdminTest, ABodyIsRefused) {
  StartServing();
  const std::string answer =
      Send("GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde");
  EXPECT_EQ(Status(answer), 413);
}

TEST_F(AdminTest, AHostThatIsNotOursIsMisdirected) {
  admin_ = *Admin::Listen("127.0.0.1:0", "", {"sis.example.com", ".sis.svc"});
  StartServing();
  const auto status = [&](const std::string& host) {
    const std::string lines = absl::StrCat(host.empty() ? "" : "Host: ", host, "\r\n\r\n");
    return Status(Send("GET /api/GetRun?run_id=a%20b%2F%C3%BC HTTP/1.1\r\n" + lines));
  };
  for (const char* host :
       {"localhost", "LOCALHOST:9464", "page.localhost", "127.0.0.1:9464", "10.0.3.4", "[::1]:9464",
        "sis-0", "sis.example.com:80", "Sis.Example.Com.", "sis-0.sis.svc:9464"}) {
    EXPECT_EQ(status(host), 200) << host;
  }
  for (const char* host : {"evil.example.com", "sis.example.com.evil.net", "127.0.0.1.evil.net",
                           "localhost.evil.net", "xsis.svc", "1.2.3.4.5", "evil.com:9464"}) {
    EXPECT_EQ(status(host), 421) << host;
  }
}

TEST_F(AdminTest, MetricsAreCompressedWhereAsked) {
  const auto registry = std::make_shared<prometheus::Registry>();
  auto& family = prometheus::BuildCounter().Name("x_total").Help("X.").Register(*registry);
  for (int i = 0; i < 1000; ++i) family.Add({{"i", absl::StrCat(i)}});
  admin_->Show([registry] { return registry->Collect(); });
  const std::string plain = Body(Get("/metrics"));
  for (const char* asked : {"gzip", "deflate, gzip;q=0.5, br", "br,gzip"}) {
    const std::string answer = Get("/metrics", absl::StrCat("Accept-Encoding: ", asked, "\r\n"));
    EXPECT_TRUE(absl::StrContains(answer, "Content-Encoding: gzip\r\n")) << asked;
    EXPECT_LT(Body(answer).size(), plain.size() / 5);
    EXPECT_EQ(Gunzipped(Body(answer)), plain);
  }
  for (const char* asked : {"", "gzip;q=0", "br", "xgzip"}) {
    const std::string answer = Get("/metrics", absl::StrCat("Accept-Encoding: ", asked, "\r\n"));
    EXPECT_FALSE(absl::StrContains(answer, "Content-Encoding")) << asked;
    EXPECT_EQ(Body(answer), plain);
  }
}

TEST(AdminAddressTest, ATakenOneIsRefused) {
  const auto first = Admin::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  const auto second = Admin::Listen((*first)->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(second.status().message(), (*first)->address()));
}

}  // namespace
}  // namespace sis
