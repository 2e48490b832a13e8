// Nodes that say what no memcached says: the server takes no harm, and waits for none for ever.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/store/items/memcached_items.h"
#include "server/testing/memcached_server.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

// Of a connection from the server. Ends when the other side does.
class Peer {
 public:
  explicit Peer(int descriptor) : descriptor_(descriptor) {}
  ~Peer() { close(descriptor_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // False if the server has left.
  bool Say(const std::string& text) const {
    return send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // The line that comes next, without its end; empty if none does.
  std::string ReadLine() const {
    std::string line;
    char byte;
    while (recv(descriptor_, &byte, 1, 0) == 1) {
      if (byte == '\n') return line.substr(0, line.size() - 1);
      line += byte;
    }
    return "";
  }

 private:
  const int descriptor_;
};

// What a node does with the command that has come, until it returns.
using Answer = std::function<void(const Peer& peer, const std::vector<std::string>& command)>;

class FakeNode {
 public:
  explicit FakeNode(Answer answer) : answer_(std::move(answer)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket().c_str(), sizeof(address.sun_path) - 1);
    bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    listen(listener_, 10);
    acceptor_ = std::thread([this] { Serve(); });
  }
  ~FakeNode() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    close(listener_);
  }

  std::string socket() const { return directory_.path() + "/node"; }

 private:
  void Serve() {
    std::vector<std::thread> connections;
    for (int peer = 0; (peer = accept(listener_, nullptr, nullptr)) >= 0;) {
      connections.emplace_back([this, peer] {
        const Peer at(peer);
        for (std::string line; !(line = at.ReadLine()).empty();) {
          answer_(at, absl::StrSplit(line, ' '));
        }
      });
    }
    for (std::thread& connection : connections) connection.join();
  }

  const Answer answer_;
  TemporaryDirectory directory_;
  const int listener_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  std::thread acceptor_;
};

std::unique_ptr<ItemStore> Open(const FakeNode& node) {
  return *OpenMemcachedItems({{.host = node.socket()}});
}

// What comes of a look for an item that has to be none.
absl::Status Get(Answer answer) {
  const FakeNode node(std::move(answer));
  const ItemKey key{.group = "group", .key = "key"};
  absl::Status status = Open(node)->Get({&key, 1})[0].status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  return status;
}

// Of memory that is in use, in bytes.
int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmHWM:")) return std::stoll(line.substr(6)) << 10;
  }
  return 0;
}

TEST(HostileMemcachedTest, LengthsThatNoItemHas) {
  const int64_t before = PeakBytes();
  for (const char* length : {"18446744073709551615", "18446744073709551614", "3000000000",
                             "1048577", "-1", "1e3", "", "99999999999999999999999999"}) {
    const absl::Status status = Get([=](const Peer& peer, const std::vector<std::string>& command) {
      peer.Say(absl::StrCat("VALUE ", command[1], " 0 ", length, " 1\r\n"));
      while (peer.Say(std::string(100'000, 'x'))) continue;
    });
    EXPECT_THAT(std::string(status.message()), HasSubstr("no answer to what was asked")) << length;
  }
  EXPECT_LT(PeakBytes() - before, 16 << 20);
}

// Of a gigabyte that the node announces. Sanitizers keep back what was freed, and note what it
// held.
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int64_t kMostTaken = 600 << 20;
#else
constexpr int64_t kMostTaken = 200 << 20;
#endif

TEST(HostileMemcachedTest, MoreThanAllItemsTogetherHave) {
  const int64_t before = PeakBytes();
  const std::string value(kMostItemBytes, 'x');
  const FakeNode node([&](const Peer& peer, const std::vector<std::string>& command) {
    for (size_t i = 1; i < command.size(); ++i) {
      if (!peer.Say(absl::StrCat("VALUE ", command[i], " 0 ", value.size(), " 1\r\n"))) return;
      if (!peer.Say(value + "\r\n")) return;
    }
  });
  std::vector<ItemKey> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back({.group = "group", .key = absl::StrCat(i)});
  const std::vector<absl::StatusOr<std::string>> values = Open(node)->Get(keys);
  EXPECT_TRUE(absl::IsUnavailable(values.back().status()));
  EXPECT_LT(PeakBytes() - before, kMostTaken);
}

TEST(HostileMemcachedTest, KeysThatNobodyAskedFor) {
  (void)Get([](const Peer& peer, const std::vector<std::string>&) {
    while (peer.Say("VALUE sis1:other 0 1 1\r\nx\r\n")) continue;
  });
  // The same for ever.
  const FakeNode node([](const Peer& peer, const std::vector<std::string>& command) {
    while (peer.Say(absl::StrCat("VALUE ", command[1], " 0 1 1\r\nx\r\n"))) continue;
  });
  const std::vector<ItemKey> keys = {{"group", "a"}, {"group", "b"}};
  const auto values = Open(node)->Get(keys);
  EXPECT_TRUE(absl::IsUnavailable(values[0].status()) || absl::IsUnavailable(values[1].status()));
}

TEST(HostileMemcachedTest, LinesWithoutAnEndAndGarbage) {
  (void)Get([](const Peer& peer, const std::vector<std::string>&) {
    while (peer.Say(std::string(1000, 'x'))) continue;
  });
  for (const char* line :
       {"ERROR", "SERVER_ERROR too hot", "VALUE", "STORED", "END ", "\x80\xff"}) {
    const absl::Status status = Get([=](const Peer& peer, const std::vector<std::string>&) {
      peer.Say(absl::StrCat(line, "\r\n"));
    });
    EXPECT_THAT(std::string(status.message()), HasSubstr(line));
  }
  // A value that ends elsewhere.
  (void)Get([](const Peer& peer, const std::vector<std::string>& command) {
    peer.Say(absl::StrCat("VALUE ", command[1], " 0 1 1\r\nxyz\r\nEND\r\n"));
  });
  (void)Get([](const Peer& peer, const std::vector<std::string>&) { peer.Say("VAL"); });
}

// Each would go on for ever.
TEST(HostileMemcachedTest, AnswersThatDrip) {
  const auto drip = [](const Peer& peer, const std::string& text) {
    for (size_t i = 0; peer.Say(text.substr(i % text.size(), 1)); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  (void)Get([&](const Peer& peer, const std::vector<std::string>&) { drip(peer, "x"); });
  (void)Get([&](const Peer& peer, const std::vector<std::string>& command) {
    peer.Say(absl::StrCat("VALUE ", command[1], " 0 900000 1\r\n"));
    drip(peer, "x");
  });
  const FakeNode node([&](const Peer& peer, const std::vector<std::string>&) { drip(peer, "S"); });
  const Item item{.key = {.group = "group", .key = "key"}, .value = "value"};
  EXPECT_TRUE(absl::IsUnavailable(Open(node)->Put({&item, 1})[0]));
}

TEST(HostileMemcachedTest, WhoeverReadsNothingIsNotWaitedFor) {
  const FakeNode node([](const Peer& peer, const std::vector<std::string>&) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    peer.ReadLine();
  });
  const Item item{.key = {.group = "group", .key = "key"}, .value = std::string(900'000, 'x')};
  EXPECT_TRUE(absl::IsUnavailable(Open(node)->Put({&item, 1})[0]));
}

// As the server does when it shuts down, also in the midst of an answer.
TEST(HostileMemcachedTest, WaitsEndWhenTheyAreToEnd) {
  std::unique_ptr<ItemStore> items;
  const FakeNode node([&](const Peer& peer, const std::vector<std::string>& command) {
    items->EndWaits(SteadyNow());
    // Fast enough to go on for long.
    peer.Say(absl::StrCat("VALUE ", command[1], " 0 900000 1\r\n"));
    peer.ReadLine();
  });
  items = Open(node);
  const ItemKey key{.group = "group", .key = "key"};
  EXPECT_TRUE(absl::IsUnavailable(items->Get({&key, 1})[0].status()));
  EXPECT_TRUE(absl::IsUnavailable(items->Get({&key, 1})[0].status()));
}

TEST(HostileMemcachedTest, WhatAnHonestNodeSays) {
  const FakeNode node([](const Peer& peer, const std::vector<std::string>& command) {
    if (command[0] != "gets") peer.ReadLine();  // the value
    if (command[0] == "add") peer.Say("SERVER_ERROR out of memory storing object\r\n");
    if (command[0] == "set") peer.Say("SERVER_ERROR object too large for cache\r\n");
    if (command[0] == "gets") peer.Say(absl::StrCat("VALUE ", command[2], " 0 0 7\r\n\r\nEND\r\n"));
  });
  const std::unique_ptr<ItemStore> items = Open(node);
  const Item item{.key = {.group = "group", .key = "key"}, .value = "value"};
  EXPECT_TRUE(absl::IsResourceExhausted(items->Add({&item, 1})[0]));
  EXPECT_TRUE(absl::IsInvalidArgument(items->Put({&item, 1})[0]));
  const std::vector<ItemKey> keys = {{"group", "a"}, {"group", "b"}, {"group", "a"}};
  const auto values = items->Get(keys);
  EXPECT_NE(values[0].ok(), values[1].ok()) << "one of the two was found";
  EXPECT_EQ(values[0].ok(), values[2].ok()) << "the same key";
}

TEST(HostileMemcachedTest, OverTcp) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::thread node([listener] {
    const Peer peer(accept(listener, nullptr, nullptr));
    peer.ReadLine();
    peer.Say("END\r\n");
    peer.ReadLine();
  });
  {
    const auto items = *OpenMemcachedItems({{"localhost", ntohs(address.sin_port)}});
    const ItemKey key{.group = "group", .key = "key"};
    EXPECT_TRUE(absl::IsNotFound(items->Get({&key, 1})[0].status()));
  }
  node.join();
  close(listener);
}

}  // namespace
}  // namespace sis
