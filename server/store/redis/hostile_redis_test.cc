// Servers that answer what no Redis answers: the store returns an error by the deadline.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/redis/redis_store.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

// A connection from the store.
class Peer {
 public:
  explicit Peer(int descriptor) : descriptor_(descriptor) {}
  ~Peer() { close(descriptor_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Returns false if the store has left.
  bool Say(const std::string& bytes) const {
    return send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Waits until the store leaves.
  void Drain() const {
    char bytes[4096];
    while (recv(descriptor_, bytes, sizeof(bytes), 0) > 0) continue;
  }
  // Returns the arguments of the next command, or none if the store has left.
  std::vector<std::string> ReadCommand() const {
    std::vector<std::string> arguments;
    const std::string count = ReadLine();
    if (count.empty()) return {};
    for (int i = std::stoi(count.substr(1)); i > 0; --i) {
      std::string argument;
      const int size = std::stoi(ReadLine().substr(1));
      for (int byte = 0; byte < size; ++byte) argument += ReadByte();
      ReadLine();
      arguments.push_back(std::move(argument));
    }
    return arguments;
  }

 private:
  char ReadByte() const {
    char byte = 0;
    return recv(descriptor_, &byte, 1, 0) == 1 ? byte : '\0';
  }
  std::string ReadLine() const {
    std::string line;
    for (char byte; (byte = ReadByte()) != '\0' && byte != '\n';) {
      if (byte != '\r') line += byte;
    }
    return line;
  }

  const int descriptor_;
};

// Answers a command. Returns false to end the connection.
using Answer = std::function<bool(const Peer& peer, const std::vector<std::string>& command)>;

class FakeServer {
 public:
  explicit FakeServer(Answer answer) : answer_(std::move(answer)) {
    signal(SIGPIPE, SIG_IGN);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(listener_, reinterpret_cast<const sockaddr*>(&address), size);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    listen(listener_, 100);
    acceptor_ = std::thread([this] { Serve(); });
  }
  ~FakeServer() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    close(listener_);
  }

  std::string address() const { return absl::StrCat("redis://127.0.0.1:", port_, "?timeout=0.5"); }
  int port() const { return port_; }

 private:
  void Serve() {
    std::vector<std::thread> connections;
    for (int socket = 0; (socket = accept(listener_, nullptr, nullptr)) >= 0;) {
      connections.emplace_back([this, socket] {
        const Peer peer(socket);
        for (std::vector<std::string> command; !(command = peer.ReadCommand()).empty();) {
          if (!answer_(peer, command)) break;
        }
      });
    }
    for (std::thread& connection : connections) connection.join();
  }

  const Answer answer_;
  const int listener_ = socket(AF_INET, SOCK_STREAM, 0);
  int port_ = 0;
  std::thread acceptor_;
};

std::string Bulk(const std::string& text) {
  return absl::StrCat("$", text.size(), "\r\n", text, "\r\n");
}

// Answers as a server without a cluster does while a store opens.
bool AnswersOpening(const Peer& peer, const std::vector<std::string>& command) {
  if (command[0] == "CLUSTER") {
    return peer.Say("-ERR This instance has cluster support disabled\r\n");
  }
  if (command[0] == "ROLE") return peer.Say("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
  if (command[0] == "INFO") return peer.Say(Bulk("redis_version:7.0.0\r\naof_enabled:1\r\n"));
  if (command[0] == "EVAL" && command[2] == "0") return peer.Say(":0\r\n");
  if (command == std::vector<std::string>{"HGETALL", "sis:drops"}) return peer.Say("*0\r\n");
  return false;
}

// On a busy machine the deadline of a call may pass before the answer comes.
std::unique_ptr<Store> Open(const FakeServer& server) {
  for (;;) {
    auto store = OpenRedis(server.address(), "server");
    const bool is_late = absl::StrContains(store.status().message(), "in time");
    if (!is_late) return *std::move(store);
  }
}

// Opens normally, then answers with `answer`.
Answer Then(Answer answer) {
  return [answer = std::move(answer)](const Peer& peer, const std::vector<std::string>& command) {
    return AnswersOpening(peer, command) || answer(peer, command);
  };
}

Answer Saying(const std::string& bytes) {
  return [bytes](const Peer& peer, const std::vector<std::string>&) { return peer.Say(bytes); };
}
Answer SayingAndLeaving(const std::string& bytes) {
  return [bytes](const Peer& peer, const std::vector<std::string>&) {
    peer.Say(bytes);
    return false;
  };
}
// Sends `bytes` again and again, with pauses.
Answer Endlessly(const std::string& begin, const std::string& bytes, int pause_ms) {
  return [=](const Peer& peer, const std::vector<std::string>&) {
    for (bool there = peer.Say(begin); there; there = peer.Say(bytes)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
    return false;
  };
}

// Peak memory of the process, in bytes.
int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmHWM:")) return std::stoll(line.substr(6)) << 10;
  }
  return 0;
}

constexpr absl::Duration kLongest = absl::Seconds(15);

struct Hostility {
  std::string name;
  Answer answer;
  std::string message;
};

std::vector<Hostility> Hostilities() {
  std::string nested, wide;
  for (int i = 0; i < 100; ++i) nested += "*1\r\n";
  for (int i = 0; i < 6; ++i) wide += "*1000000\r\n";
  return {
      {"http", SayingAndLeaving("HTTP/1.1 400 Bad Request\r\n\r\n"), "no reply of Redis"},
      {"garbage", SayingAndLeaving(std::string("\x15\x03\x01\0\x02\x02\x16", 7)),
       "no reply of Redis"},
      {"leaves", SayingAndLeaving(""), "closed the connection"},
      {"cut", SayingAndLeaving("$100\r\nabc"), "closed the connection"},
      {"silence",
       [](const Peer& peer, const std::vector<std::string>&) {
         peer.Drain();
         return false;
       },
       "no reply in time"},
      {"trickle", Endlessly("$1000000\r\n", "x", 20), "no reply in time"},
      {"long line", Endlessly("+", std::string(1 << 16, 'x'), 0), ""},
      {"huge text", Endlessly("$9223372036854775807\r\n", std::string(1 << 16, 'x'), 0), ""},
      {"large text", Endlessly("$2000000000\r\n", std::string(1 << 16, 'x'), 0), ""},
      {"huge array", Saying("*2147483647\r\n"), ""},
      {"larger array", Saying("*9223372036854775807\r\n"), ""},
      {"negative array", Saying("*-5\r\n"), ""},
      {"negative text", Saying("$-5\r\n"), ""},
      {"no length", Saying("$x\r\n"), ""},
      {"nested arrays", Saying(nested), ""},
      {"wide arrays", Saying(wide), ""},
      {"array of errors", Saying("*2\r\n-ERR\r\n-ERR\r\n"), ""},
      {"endless array", Endlessly("*1000000000\r\n", ":1\r\n:1\r\n:1\r\n:1\r\n", 0), ""},
      {"kinds of RESP3", Saying("%1\r\n+a\r\n,1.5\r\n"), ""},
      {"an integer", Saying(":9223372036854775807\r\n"), ""},
      {"no integer", Saying(":99999999999999999999\r\n"), ""},
      {"a status", Saying("+OK\r\n"), ""},
      {"nil", Saying("$-1\r\n"), ""},
      {"nil array", Saying("*-1\r\n"), ""},
      {"arrays in an array", Saying("*2\r\n*1\r\n:1\r\n*1\r\n:1\r\n"), ""},
      {"odd array", Saying("*3\r\n+b\r\n+b\r\n+b\r\n"), ""},
      {"moved to nowhere", Saying("-MOVED 1 127.0.0.1:1\r\n"), "127.0.0.1:1"},
      {"moved without an address", Saying("-MOVED\r\n"), ""},
      {"moved to no port", Saying("-MOVED 1 127.0.0.1:99999\r\n"), ""},
      {"moved to no host", Saying("-MOVED 1 :0\r\n"), ""},
      {"always asks again", Saying("-TRYAGAIN\r\n"), "TRYAGAIN"},
      {"an empty error", Saying("-\r\n"), ""},
      {"loading", Saying("-LOADING Redis is loading the dataset in memory\r\n"),
       "still loading its data"},
      {"cluster down", Saying("-CLUSTERDOWN The cluster is down\r\n"), "the cluster is down"},
      {"needs a password", Saying("-NOAUTH Authentication required.\r\n"),
       "refuses user or password"},
      {"cannot persist", Saying("-MISCONF Redis is configured to save\r\n"),
       "cannot write to its disk"},
  };
}

// Makes all calls of the store in parallel. Returns the name and the error of each.
std::vector<std::pair<std::string, absl::Status>> CallAll(Store& store) {
  const SequenceIdentity sequence{"run", 1, "a", 0};
  const StoredPart block{StoredPart::Kind::kBlock, 0, 1, "rows"};
  const DroppedSequence dropped{sequence, 1};
  const std::pair<std::string, std::function<absl::Status()>> calls[] = {
      {"Put",
       [&] {
         return store.Put(sequence, {.added = {&block, 1}, .expires = absl::InfiniteFuture()})
             .status();
       }},
      {"Load", [&] { return store.Load(sequence).status(); }},
      {"Drop",
       [&] {
         return store.Drop({&dropped, 1}, absl::InfiniteFuture()).status();
       }},
      {"PutRun",
       [&] {
         return store.PutRun({"run", 1, 0, "config"}).status();
       }},
      {"Revision", [&] { return store.Revision(sequence).status(); }},
      {"ExchangeNews", [&] { return store.ExchangeNews({}).status(); }},
      {"GetRun", [&] { return store.GetRun("run").status(); }},
      {"ListRuns", [&] { return store.ListRuns().status(); }},
      {"DropIncarnations", [&] { return store.DropIncarnations("run", 1, 2); }},
      {"PutSteps",
       [&] {
         return store.PutSteps("run", 1, {{1, "step"}});
       }},
      {"GetSteps", [&] { return store.GetSteps("run", 1).status(); }},
  };
  const absl::Time start = SteadyNow();
  std::vector<std::future<absl::Status>> results;
  for (const auto& [name, call] : calls) results.push_back(std::async(std::launch::async, call));
  std::vector<std::pair<std::string, absl::Status>> errors;
  for (size_t i = 0; i < results.size(); ++i) errors.emplace_back(calls[i].first, results[i].get());
  EXPECT_LT(SteadyNow() - start, kLongest);
  return errors;
}

class HostileRedisTest : public ::testing::TestWithParam<Hostility> {};

INSTANTIATE_TEST_SUITE_P(All, HostileRedisTest, ::testing::ValuesIn(Hostilities()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = absl::ascii_isalnum(c) ? c : '_';
                           return name;
                         });

TEST_P(HostileRedisTest, AnOpenedStoreReturnsErrorsByTheDeadline) {
  const FakeServer server(Then(GetParam().answer));
  const auto store = Open(server);
  int told = 0;
  // On a busy machine the deadline of every call may pass before the answer comes.
  while (told == 0) {
    for (const auto& [call, status] : CallAll(*store)) {
      // An answer may be right for some calls.
      if (status.ok() || absl::IsNotFound(status)) continue;
      EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDataLoss(status)) << call << status;
      const std::string message(status.message());
      if (absl::IsDataLoss(status) || absl::StrContains(message, GetParam().message)) {
        ++told;
      } else {
        EXPECT_THAT(message, HasSubstr("in time")) << call;
      }
    }
    if (HasFailure()) break;
  }
}

TEST_P(HostileRedisTest, OpeningReturnsAnErrorByTheDeadline) {
  const FakeServer server(GetParam().answer);
  const absl::Time start = SteadyNow();
  const absl::Status status = OpenRedis(server.address(), "server").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(SteadyNow() - start, kLongest);
}

TEST(HostileTopologyTest, SlotsThatNoClusterHas) {
  for (const std::string slots :
       {"*0\r\n", "*1\r\n:1\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:-1\r\n:5\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:5\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n*0\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:1\r\n*0\r\n"}) {
    const FakeServer server([&](const Peer& peer, const std::vector<std::string>& command) {
      return command[0] == "CLUSTER" ? peer.Say(slots) : AnswersOpening(peer, command);
    });
    const absl::Status status = OpenRedis(server.address(), "server").status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << slots << status;
  }
}

TEST(HostileTopologyTest, NodesThatRedirectToEachOther) {
  int port = 0;
  const FakeServer server(Then([&](const Peer& peer, const std::vector<std::string>&) {
    return peer.Say(absl::StrCat("-MOVED 1 127.0.0.1:", port, "\r\n"));
  }));
  port = server.port();
  const auto store = Open(server);
  for (const auto& [call, status] : CallAll(*store)) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << call << status;
  }
}

TEST(HostileTopologyTest, AScanThatNeverEnds) {
  const FakeServer server([&](const Peer& peer, const std::vector<std::string>& command) {
    if (command[0] == "HGETALL") return peer.Say("*2\r\n$3\r\na b\r\n$0\r\n\r\n");
    if (command[0] == "SCAN") return peer.Say("*2\r\n$1\r\n7\r\n*0\r\n");
    return AnswersOpening(peer, command);
  });
  const auto store = Open(server);
  absl::SleepFor(absl::Milliseconds(200));
}

TEST(HostileRedisMemoryTest, RepliesTakeNoMoreThanTheirLimit) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
  const int64_t before = PeakBytes();
  for (const Hostility& hostility : Hostilities()) {
    if (!absl::StrContains(hostility.name, "array")) continue;
    const FakeServer server(Then(hostility.answer));
    const auto store = Open(server);
    store->GetRun("run").status().IgnoreError();
  }
  EXPECT_LT(PeakBytes() - before, int64_t{256} << 20);
}

}  // namespace
}  // namespace sis
