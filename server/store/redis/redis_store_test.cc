// Promises of a store in Redis beyond those of all stores, against real servers.
#include "server/store/redis/redis_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/hash_store.h"
#include "server/store/redis/redis_address.h"
#include "server/store/redis/redis_nodes.h"
#include "server/testing/redis_servers.h"
#include "server/testing/store_parts.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Time Tomorrow() { return absl::Now() + absl::Hours(24); }

// Puts parts whatever is stored.
absl::Status Put(Store& store, const SequenceIdentity& sequence,
                 const std::vector<StoredPart>& parts, absl::Time expires = Tomorrow()) {
  return PutParts(store, sequence, parts, expires);
}

std::unique_ptr<Store> Open(const std::string& address, const std::string& name = "server") {
  auto store = OpenRedis(address, name);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

// Calls until the result is OK, for at most a minute.
absl::Status Eventually(const std::function<absl::Status()>& call) {
  const absl::Time end = SteadyNow() + absl::Minutes(1);
  for (;;) {
    absl::Status status = call();
    if (status.ok() || SteadyNow() > end) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool RunsWell(const std::string& command) { return std::system(command.c_str()) == 0; }

TEST(RedisStoreTest, NamesOfAnyBytesAreTheirOwn) {
  const RedisServers servers;
  const auto store = Open(servers.address());
  std::vector<SequenceIdentity> sequences;
  for (const std::string& name :
       {std::string("a"), std::string(), std::string("a/1"), std::string("{a}"), std::string("}a{"),
        std::string("*"), std::string("[a]?\\"), std::string("%61"), std::string("\0\xff\r\n", 4),
        std::string(256, '\xfe')}) {
    sequences.push_back({"run", 1, name, 0});
    sequences.push_back({name, 1, "id", 0});
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    ASSERT_TRUE(Put(*store, sequences[i], {Block(i, 1, "rows")}).ok());
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_THAT(store->Load(sequences[i])->parts, ElementsAre(Block(i, 1, "rows")));
  }
}

TEST(RedisStoreTest, ExpiresAndOnlyEverLater) {
  const RedisServers servers;
  const auto store = Open(servers.address());
  const auto in_a_minute = absl::Now() + absl::Minutes(1);
  ASSERT_TRUE(Put(*store, Sequence("long"), {Block(0, 1, "rows")}).ok());
  ASSERT_TRUE(Put(*store, Sequence("long"), {Block(1, 1, "rows")}, in_a_minute).ok());
  ASSERT_TRUE(Put(*store, Sequence("longer"), {Block(0, 1, "rows")}, in_a_minute).ok());
  ASSERT_TRUE(Put(*store, Sequence("longer"), {}, absl::InfiniteFuture()).ok());
  for (const char* id : {"long", "longer"}) {
    EXPECT_GT(servers.Ask(0, {"PTTL", SequenceKey(Sequence(id))}).integer, 3'600'000) << id;
  }
  const auto soon = absl::Now() + absl::Milliseconds(300);
  ASSERT_TRUE(Put(*store, Sequence("short"), {Block(0, 1, "rows")}, soon).ok());
  EXPECT_TRUE(Eventually([&] {
                return absl::IsNotFound(store->Load(Sequence("short")).status())
                           ? absl::OkStatus()
                           : absl::UnknownError("still there");
              }).ok());
}

TEST(RedisStoreTest, IncarnationsAreDroppedOnAllNodes) {
  const RedisServers servers(3, 0);
  const auto store = Open(servers.address()), other = Open(servers.address(), "other");
  const auto all = [](const std::function<void(const SequenceIdentity&)>& visit) {
    for (const char* run : {"run", "ru*", "run2"}) {
      for (uint64_t incarnation = 1; incarnation <= 12; ++incarnation) {
        for (const char* id : {"a", "b"}) visit({run, incarnation, id, 0});
      }
    }
  };
  all([&](const SequenceIdentity& sequence) {
    ASSERT_TRUE(Put(*store, sequence, {Block(0, 1, "rows")}).ok());
    ASSERT_TRUE(store->PutSteps(sequence.run_id, sequence.incarnation, {{1, "mine"}}).ok());
    ASSERT_TRUE(other->PutSteps(sequence.run_id, sequence.incarnation, {{1, "other"}}).ok());
  });
  ASSERT_TRUE(store->DropIncarnations("run", 2, 10).ok());
  const auto is_dropped = [](const SequenceIdentity& sequence) {
    return sequence.run_id == "run" && sequence.incarnation >= 2 && sequence.incarnation < 10;
  };
  EXPECT_TRUE(Eventually([&] {
                absl::Status left;
                all([&](const SequenceIdentity& sequence) {
                  if (!is_dropped(sequence)) return;
                  const bool gone = absl::IsNotFound(store->Load(sequence).status()) &&
                                    store->GetSteps("run", sequence.incarnation)->empty() &&
                                    other->GetSteps("run", sequence.incarnation)->empty();
                  if (!gone) left = absl::UnknownError(ToString(sequence));
                });
                return left;
              }).ok());
  all([&](const SequenceIdentity& sequence) {
    if (is_dropped(sequence)) return;
    EXPECT_TRUE(store->Load(sequence).ok()) << ToString(sequence);
    EXPECT_EQ(*store->GetSteps(sequence.run_id, sequence.incarnation)->at(0), "mine");
    EXPECT_EQ(*other->GetSteps(sequence.run_id, sequence.incarnation)->at(0), "other");
  });
}

// The first server may look at the keys before the second one writes, and finish after the second
// one has called: in about 1 of 100 rounds.
TEST(RedisStoreTest, IncarnationsAreDroppedWhereAnotherServerDropsThemToo) {
  constexpr uint64_t kRounds = 2000;
  const RedisServers servers;
  const auto first = Open(servers.address()), second = Open(servers.address(), "second");
  for (uint64_t incarnation = 1; incarnation <= kRounds; ++incarnation) {
    ASSERT_TRUE(first->DropIncarnations("run", incarnation, incarnation + 1).ok());
    ASSERT_TRUE(Put(*second, {"run", incarnation, "late", 0}, {Block(0, 1, "rows")}).ok());
    ASSERT_TRUE(second->DropIncarnations("run", incarnation, incarnation + 1).ok());
  }
  for (uint64_t incarnation = 1; incarnation <= kRounds; ++incarnation) {
    ASSERT_TRUE(Eventually([&] {
                  const auto late = first->Load({"run", incarnation, "late", 0});
                  return absl::IsNotFound(late.status()) ? absl::OkStatus()
                                                         : absl::UnknownError("still there");
                }).ok())
        << incarnation;
  }
}

TEST(RedisStoreTest, NewsBeyondTheLimitOfAReplyAreHeard) {
  const RedisServers servers;
  const auto one = Open(servers.address()), other = Open(servers.address(), "other");
  const std::vector<std::string> news(4000, std::string(70, 'x'));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(one->ExchangeNews(news).ok());
  EXPECT_EQ(other->ExchangeNews({})->size(), 400'000);
  EXPECT_THAT(*other->ExchangeNews({}), IsEmpty());
}

TEST(RedisStoreTest, AnotherServersRunsAreListed) {
  const RedisServers servers;
  const auto store = Open(servers.address()), other = Open(servers.address());
  StoredRun run{"run", 1, 0, "config"};
  for (int change = 0; change < 4; ++change) {
    run.policy_version = change;
    ASSERT_TRUE(other->PutRun(run).ok());
    for (int again = 0; again < 2; ++again) EXPECT_THAT(store->ListRuns()->runs, ElementsAre(run));
  }
  // A store that lost everything has other records at the same number of changes.
  servers.Ask(0, {"FLUSHALL"});
  EXPECT_THAT(store->ListRuns()->runs, IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store->GetRun("run").status()));
  // An expired record of a deleted run.
  servers.Ask(0, {"HSET", "sis:runs", "rrun", "2\n0\n1\n\n", "v", "1"});
  EXPECT_THAT(store->ListRuns()->runs, IsEmpty());
  EXPECT_EQ(servers.Ask(0, {"HEXISTS", "sis:runs", "rrun"}).integer, 0);
  EXPECT_TRUE(absl::IsNotFound(store->GetRun("run").status()));
  servers.Ask(0, {"HSET", "sis:runs", "rrun", "damaged", "v", "2"});
  EXPECT_TRUE(absl::IsDataLoss(store->GetRun("run").status()));
  EXPECT_THAT(store->ListRuns()->unreadable, ElementsAre(::testing::Pair("run", ::testing::_)));
  EXPECT_EQ(*store->PutRun(run), run);
}

TEST(RedisStoreTest, DamageIsDataLoss) {
  const RedisServers servers;
  const auto store = Open(servers.address());
  const std::string key = SequenceKey(Sequence("a"));
  const std::vector<std::vector<std::string>> damages = {
      {"SET", key, "a string"},
      {"HSET", key, "v", "1", "x", "an unknown field"},
      {"HSET", key, "v", "1", "", "no field"},
      {"HSET", key, "v", "1", "r", "no position"},
      {"HSET", key, "v", "1", "r0000000000000000", "no count"},
      {"HSET", key, "v", "1", "rffffffffffffffff", "beyond the last position"},
      {"HSET", key, "v", "1", "r-000000100000001", "no position"},
      {"HSET", key, "v", "1", "s0000000100000001", "a count"},
      {"HSET", key, "v", "1", "d", "more than a reason"},
      {"HSET", key, "v", "1", "d", "5", "s0000000100000000", "seal"},
      {"HSET", key, "v", "1"},
      {"HSET", key, "v", "none", "r0000000000000001", "rows"},
      {"HSET", key, "r0000000000000001", "rows without a revision"},
  };
  for (const std::vector<std::string>& damage : damages) {
    servers.Ask(0, {"DEL", key});
    ASSERT_FALSE(servers.Ask(0, damage).is_error()) << damage[2];
    const absl::Status status = store->Load(Sequence("a")).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << damage[2] << ": " << status;
  }
  EXPECT_TRUE(DropOne(*store, Sequence("a"), kReleased).ok());
}

TEST(RedisStoreTest, AFullServerTakesNoPartsAndDrops) {
  const RedisServers servers({"--maxmemory", "40mb"});
  const auto store = Open(servers.address());
  absl::Status status;
  int stored = 0;
  for (; status.ok() && stored < 100; ++stored) {
    status = Put(*store, Sequence(absl::StrCat(stored)), {Block(0, 1, std::string(1 << 20, 'x'))});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("maxmemory"));
  servers.Ask(0, {"CONFIG", "SET", "maxmemory", "20mb"});
  EXPECT_TRUE(Eventually([&] {
                return absl::IsResourceExhausted(store->CanPut()) ? absl::OkStatus()
                                                                  : absl::UnknownError("not full");
              }).ok());
  EXPECT_TRUE(OpenRedis(servers.address(), "").ok());
  EXPECT_TRUE(store->PutRun({"run", 1, 0, "config"}).ok());
  for (int i = 0; i < stored; ++i) {
    EXPECT_TRUE(DropOne(*store, Sequence(absl::StrCat(i)), kReleased).ok());
    EXPECT_EQ(store->Load(Sequence(absl::StrCat(i)))->dropped, 5);
  }
  servers.Ask(0, {"MEMORY", "PURGE"});
  EXPECT_TRUE(Eventually([&] { return store->CanPut(); }).ok());
  EXPECT_TRUE(Put(*store, Sequence("again"), {Block(0, 1, "rows")}).ok());
}

TEST(RedisStoreTest, ARestartedServerIsFound) {
  RedisServers servers({"--appendonly", "yes", "--appendfsync", "always"});
  const auto store = Open(servers.address("?timeout=5"));
  const std::vector<StoredPart> parts = {Gap(5, 1), Block(0, 5, "rows"), Seal(6)};
  ASSERT_TRUE(Put(*store, Sequence("a"), parts).ok());
  servers.Kill(0);
  EXPECT_TRUE(absl::IsUnavailable(store->Load(Sequence("a")).status()));
  servers.Start(0);
  EXPECT_EQ(store->Load(Sequence("a"))->parts, parts);
  EXPECT_TRUE(Put(*store, Sequence("a"), {Block(6, 1, "rows")}).ok());
}

TEST(RedisClusterTest, SlotsThatMoveAreFollowed) {
  const RedisServers servers(3, 0);
  const auto store = Open(servers.address());
  ASSERT_TRUE(Put(*store, Sequence("a"), {Block(0, 1, "rows")}).ok());
  const std::string key = SequenceKey(Sequence("a"));
  const std::string slot = absl::StrCat(RedisSlot(key));
  EXPECT_EQ(absl::StrCat(servers.Ask(0, {"CLUSTER", "KEYSLOT", key}).integer), slot);
  const size_t from = static_cast<size_t>(RedisSlot(key)) * 3 / kRedisSlots;
  const size_t to = (from + 1) % 3;
  const std::string to_id = servers.Ask(to, {"CLUSTER", "MYID"}).text;
  const std::string from_id = servers.Ask(from, {"CLUSTER", "MYID"}).text;
  servers.Ask(to, {"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id});
  servers.Ask(from, {"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id});
  EXPECT_TRUE(Put(*store, Sequence("a"), {Block(1, 1, "rows")}).ok());
  servers.Ask(from,
              {"MIGRATE", "127.0.0.1", absl::StrCat(servers.node(to).port), key, "0", "5000"});
  // ASK, then MOVED.
  EXPECT_TRUE(Put(*store, Sequence("a"), {Block(2, 1, "rows")}).ok());
  for (const size_t node : {to, from})
    servers.Ask(node, {"CLUSTER", "SETSLOT", slot, "NODE", to_id});
  EXPECT_TRUE(Put(*store, Sequence("a"), {Block(3, 1, "rows")}).ok());
  EXPECT_EQ(store->Load(Sequence("a"))->parts.size(), 4);
  EXPECT_EQ(servers.Ask(to, {"EXISTS", key}).integer, 1);
}

TEST(RedisClusterTest, AReplicaThatIsPromotedIsFound) {
  RedisServers servers(3, 3);
  for (int i = 0; i < 6; ++i) servers.Ask(i, {"CONFIG", "SET", "cluster-node-timeout", "1000"});
  const auto store = Open(servers.address("?timeout=2"));
  const auto put_all = [&]() -> absl::Status {
    for (int i = 0; i < 30; ++i) {
      absl::Status status = Put(*store, Sequence(absl::StrCat(i)), {Block(0, 1, "rows")});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE(put_all().ok());
  for (int i = 0; i < 3; ++i) servers.Ask(i, {"WAIT", "1", "5000"});
  servers.Kill(0);
  const absl::Status status = Eventually(put_all);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Eventually([&] { return store->CanPut(); }).ok());
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(store->Load(Sequence(absl::StrCat(i))).ok());
  // The opening finds the others, too.
  EXPECT_TRUE(OpenRedis(servers.address(), "").ok());
}

struct Problem {
  RedisServers::Options options;
  std::string address_options;
  std::string message;
};

TEST(RedisStoreTest, ProblemsHaveClearMessages) {
  for (const auto& [options, address_options, message] : std::vector<Problem>{
           {{"--requirepass", "secret"}, "?timeout=20", "refuses user or password"},
           {{"--requirepass", "secret"}, "?password_file=/nonexistent", "no password"},
           {{"--replicaof", "127.0.0.1 1"}, "?timeout=20", "is a read-only replica"},
           {{"--rename-command", "INFO", "OTHER"}, "?timeout=20", "unknown command"},
           {{"--min-replicas-to-write", "1"}, "?timeout=20", "NOREPLICAS"},
           {{}, "/99?timeout=20", "DB index is out of range"},
       }) {
    const RedisServers servers(options);
    const absl::Status status = OpenRedis(servers.address(address_options), "").status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(RedisStoreTest, WarnsOfSettingsThatMayLoseData) {
  for (const auto& [options, warning] : std::vector<std::pair<RedisServers::Options, std::string>>{
           {{}, "appendonly is no"},
           {{"--appendonly", "yes"}, ""},
           {{"--appendonly", "yes", "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"},
            "must be noeviction"},
       }) {
    const RedisServers servers(options);
    ::testing::internal::CaptureStderr();
    Open(servers.address());
    const std::string printed = ::testing::internal::GetCapturedStderr();
    if (warning.empty()) EXPECT_EQ(printed, "");
    EXPECT_THAT(printed, HasSubstr(warning));
  }
}

TEST(RedisStoreTest, APasswordComesFromAFileAndMayChange) {
  RedisServers servers;
  servers.Ask(0, {"ACL", "SETUSER", "sis", "on", ">p@ss/word", "~sis:*", "+@all"});
  const std::string host = ToString(servers.node(0));
  const std::string file = servers.folder() + "/password";
  std::ofstream(file) << "p@ss/word\n";
  const auto store = Open("redis://sis@" + host + "?password_file=" + file);
  servers.Ask(0, {"ACL", "SETUSER", "sis", "resetpass", ">other"});
  servers.Ask(0, {"CLIENT", "KILL", "USER", "sis"});
  // The first call may find that its connection is closed.
  std::string message;
  for (int i = 0; i < 10 && !absl::StrContains(message, "WRONGPASS"); ++i) {
    message = std::string(Put(*store, Sequence("a"), {}).message());
  }
  EXPECT_THAT(message, HasSubstr("WRONGPASS"));
  std::ofstream(file) << "other\n";
  EXPECT_TRUE(Eventually([&] { return Put(*store, Sequence("a"), {}); }).ok());
}

TEST(RedisStoreTest, Tls) {
  signal(SIGPIPE, SIG_IGN);
  const std::string folder = ::testing::TempDir();
  const std::string ca = folder + "/sis-redis.pem", key = folder + "/sis-redis.key";
  ASSERT_TRUE(
      RunsWell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 "
               "-subj /CN=redis -addext subjectAltName=IP:127.0.0.1 -keyout " +
               key + " -out " + ca + " 2>/dev/null"));
  const uint16_t port = RedisServers().node(0).port;  // free again
  const RedisServers servers({"--tls-port", absl::StrCat(port), "--tls-cert-file", ca,
                              "--tls-key-file", key, "--tls-ca-cert-file", ca});
  const std::string host = absl::StrCat(":", port);
  const std::string with_ca = "?timeout=5&ca=" + ca;
  const std::string with_all = with_ca + "&cert=" + ca + "&key=" + key;
  const auto store = Open("rediss://127.0.0.1" + host + with_all);
  const std::vector<StoredPart> parts = {Block(0, 5, std::string(1 << 20, 'x'))};
  ASSERT_TRUE(Put(*store, Sequence("a"), parts).ok());
  EXPECT_EQ(store->Load(Sequence("a"))->parts, parts);
  for (const auto& [address, message] : std::vector<std::pair<std::string, std::string>>{
           {"rediss://127.0.0.1" + host + "?timeout=5", "self"},
           {"rediss://localhost" + host + with_all, "hostname mismatch"},
           {"rediss://127.0.0.1" + host + with_ca, "certificate"},
           {"rediss://127.0.0.1" + host + "?ca=/nonexistent", "ca /nonexistent"},
           {"redis://127.0.0.1" + host + "?timeout=1", "redis 127.0.0.1"},
       }) {
    const absl::Status status = OpenRedis(address, "").status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << address;
  }
}

TEST(RedisAddressTest, ErrorsNeverContainThePassword) {
  for (const char* good :
       {"redis://host", "redis://host:1", "redis://a,b:2,[::1]:3,[::1]", "redis://host/3",
        "redis://a@b@host?password_file=/f", "redis://user@host?password_file=/f",
        "rediss://host?ca=/ca&cert=/cert&key=/key", "redis://host?timeout=0.5"}) {
    const absl::Status status = ParseRedisAddress(good).status();
    EXPECT_TRUE(status.ok()) << good << status;
  }
  for (const char* bad : {"",
                          "redis:",
                          "redis:/host",
                          "http://host",
                          "redis://",
                          "redis://a,,b",
                          "redis://host:0",
                          "redis://host:65536",
                          "redis://host:x",
                          "redis://[::1",
                          "redis://[::1]x",
                          "redis://[]",
                          "redis://:6379",
                          "redis://host/x",
                          "redis://host/-1",
                          "redis://user:secret@host",
                          "redis://:secret@host",
                          "redis://user:secret/@@host",
                          "redis://user@?password_file=/f",
                          "redis://user@host",
                          "redis://u:secret@host?password_file=/f",
                          "redis://u:secret?x@host",
                          "redis://host?timeout=0",
                          "redis://host?timeout=nan",
                          "redis://host?ca=/f",
                          "rediss://host?cert=/f",
                          "redis://host?secret=1",
                          "redis://host?password_file"}) {
    const absl::Status status = ParseRedisAddress(bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("secret"))) << bad;
  }
}

}  // namespace
}  // namespace sis
