#include "server/store/redis/redis_store.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/store/hash_store.h"
#include "server/store/redis/redis_address.h"
#include "server/store/redis/redis_nodes.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {
namespace {

constexpr size_t kMaxHashBytes = size_t{1} << 29;
// A hash of FIRST LAST NUMBER, ranges of keys to be removed, and a stream of news.
constexpr absl::string_view kDrops = "sis:drops", kNews = "sis:news";
// Servers send once a second at most. A reply with a few entries is far below its limit.
constexpr absl::string_view kMaxNews = "300", kEntriesAtOnce = "16";

// Scripts run only on Redis 7 and later. Scripts with the first header run at maxmemory too.
constexpr absl::string_view kWhenFull = "#!lua flags=allow-oom\n", kUnlessFull = "#!lua\n";

// Arguments: the time to live in milliseconds, the expected revision (empty: any), the new one, the
// number of fields to be removed, these, then fields and values. Returns 1 if the revision was the
// expected one, or is the new one, as the script may be sent twice.
constexpr absl::string_view kChange = R"(
local key = KEYS[1]
local there = redis.call('HGET', key, 'v') or '0'
if there ~= ARGV[3] then
  if there ~= ARGV[2] and ARGV[2] ~= '' then return 0 end
  local put = 5 + ARGV[4]
  for i = 5, put - 1 do redis.call('HDEL', key, ARGV[i]) end
  for i = put, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
  redis.call('HSET', key, 'v', ARGV[3])
end
if redis.call('PTTL', key) < tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
return 1
)";

// Arguments: the time to live, the reason, the expected revision (empty: any), the new one. Returns
// 1 if it removed parts.
constexpr absl::string_view kDrop = R"(#!lua flags=allow-oom
local key, had = KEYS[1], 0
if ARGV[3] ~= '' and redis.call('HGET', key, 'v') ~= ARGV[3] then return 0 end
if redis.call('HEXISTS', key, 'd') == 0 then
  had = redis.call('DEL', key)
  redis.call('HSET', key, 'd', ARGV[2], 'v', ARGV[4])
end
if redis.call('PTTL', key) < tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
return had
)";

// Writes nothing, but is refused where writes are.
constexpr absl::string_view kProbe = "#!lua\nreturn 0\n";

// A time to live, unlike a time, needs no clocks that agree. 0 removes the key at once.
std::string MillisecondsUntil(absl::Time expires) {
  constexpr int64_t kMax = int64_t{100} * 366 * 24 * 3600 * 1000;
  return absl::StrCat(
      std::clamp(absl::ToInt64Milliseconds(expires - absl::Now()), int64_t{0}, kMax));
}

// Returns a script's argument: an expected revision, or nothing for any.
std::string RevisionText(std::optional<uint64_t> revision) {
  return revision.has_value() ? absl::StrCat(*revision) : "";
}

absl::Status Unexpected(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat("redis: an unexpected reply to ", call));
}

// Returns the value of a line "name:value" of the reply to INFO, or nothing.
absl::string_view InfoOf(absl::string_view info, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(info, "\r\n")) {
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, ":")) return line;
  }
  return "";
}

class RedisStore final : public HashStore {
 public:
  RedisStore(RedisAddress address, std::string_view server_name)
      : HashStore(server_name), nodes_(std::move(address)) {}
  ~RedisStore() override { stopping_ = true; }

  // Checks all primaries, warns of what they may lose, and goes on with drops of earlier servers.
  absl::Status Open() {
    const auto primaries = nodes_.Primaries();
    if (!primaries.ok()) return primaries.status();
    for (const RedisNode& node : *primaries) {
      const auto info = nodes_.Call({.node = node, .arguments = {"INFO"}});
      if (!info.ok()) return info.status();
      absl::Status status = CheckInfo(absl::StrCat("redis ", ToString(node), ": "), info->text);
      if (!status.ok()) return status;
    }
    const absl::Status can_put = CanPut();
    // A store that is full still answers.
    return absl::IsResourceExhausted(can_put) ? absl::OkStatus() : can_put;
  }

  bool shared() const override { return true; }

  absl::Status CanPut() override {
    if (must_drop_) DropNotedBehind();
    const auto primaries = nodes_.Primaries();
    if (!primaries.ok()) return primaries.status();
    for (const RedisNode& node : *primaries) {
      const auto probed = nodes_.Call({.node = node, .arguments = {"EVAL", kProbe, "0"}});
      if (!probed.ok()) return probed.status();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> ExchangeNews(
      std::span<const std::string> news) override {
    WriterLock lock(news_mutex_);
    std::vector<RedisCommand> commands;
    if (!news.empty()) {
      commands.push_back({.key = kNews, .arguments = {"XADD", kNews, "MAXLEN", kMaxNews, "*"}});
      auto& arguments = commands.back().arguments;
      for (const std::string& item : news) arguments.insert(arguments.end(), {sender_, item});
    }
    std::vector<std::string> heard;
    for (bool may_have_more = true; may_have_more; commands.clear()) {
      commands.push_back(
          {.key = kNews,
           .arguments = {"XRANGE", kNews, news_after_, "+", "COUNT", kEntriesAtOnce}});
      std::vector<absl::StatusOr<RedisReply>> replies = nodes_.CallAll(commands);
      for (const auto& reply : replies) {
        if (reply.ok()) continue;
        if (heard.empty()) return reply.status();
        return heard;  // the next call begins after them
      }
      may_have_more = !replies.back()->elements.empty();
      for (RedisReply& entry : replies.back()->elements) {
        if (entry.elements.size() != 2) return Unexpected("XRANGE");
        news_after_ = "(" + entry.elements[0].text;
        std::vector<RedisReply>& items = entry.elements[1].elements;
        for (size_t i = 1; i < items.size(); i += 2) {
          if (items[i - 1].text != sender_) heard.push_back(std::move(items[i].text));
        }
      }
    }
    return heard;
  }

  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override {
    const std::string time_to_live = MillisecondsUntil(expires), next = absl::StrCat(NewRevision());
    std::vector<std::string> keys, expected;
    for (const DroppedSequence& drop : sequences) {
      keys.push_back(SequenceKey(drop.sequence));
      expected.push_back(RevisionText(drop.revision));
    }
    std::vector<RedisCommand> commands;
    for (size_t i = 0; i < keys.size(); ++i) {
      const absl::string_view reason(reinterpret_cast<const char*>(&sequences[i].reason), 1);
      commands.push_back(
          {.key = keys[i],
           .arguments = {"EVAL", kDrop, "1", keys[i], time_to_live, reason, expected[i], next}});
    }
    std::vector<bool> had_parts;
    for (const absl::StatusOr<RedisReply>& reply : nodes_.CallAll(commands)) {
      if (!reply.ok()) return reply.status();
      if (!reply->is_integer()) return Unexpected("a drop");
      had_parts.push_back(reply->integer != 0);
    }
    return had_parts;
  }

  // Removes them in the background, as it looks at all keys. The note in sis:drops outlives this
  // server.
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    HashChange note{.key = std::string(kDrops)};
    // Each note has a number of its own. Another server that drops the same range removes only its
    // own note, because it may have looked at the keys before this server wrote the last of them.
    note.put.emplace_back(absl::StrCat(IncarnationPrefix(run_id, first), " ",
                                       IncarnationPrefix(run_id, last), " ", NewRevision()),
                          "");
    if (absl::Status status = Change(note); !status.ok()) return status;
    must_drop_ = true;
    DropNotedBehind();
    return absl::OkStatus();
  }

 private:
  static absl::Status CheckInfo(absl::string_view node, absl::string_view info) {
    const absl::string_view version = InfoOf(info, "redis_version");
    int major = 0;
    if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &major) || major < 7) {
      return absl::UnavailableError(
          absl::StrCat(node, "version ", version.empty() ? "unknown" : version.substr(0, 20),
                       " is too old; must be Redis 7 or Valkey"));
    }
    if (InfoOf(info, "aof_enabled") == "0") {
      std::cerr << "store: " << node
                << "appendonly is no: if this node fails, acknowledged blocks since its last "
                   "snapshot are lost, all of them without snapshots"
                << std::endl;
    }
    const absl::string_view policy = InfoOf(info, "maxmemory_policy");
    if (InfoOf(info, "maxmemory") != "0" && !policy.empty() && policy != "noeviction") {
      std::cerr << "store: " << node << "maxmemory-policy is " << policy.substr(0, 40)
                << ": where memory is short, acknowledged blocks are lost; must be noeviction"
                << std::endl;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Hash> Read(absl::string_view key) override {
    absl::StatusOr<RedisReply> reply =
        nodes_.Call({.key = key, .arguments = {"HGETALL", key}, .max_reply_bytes = kMaxHashBytes});
    if (!reply.ok()) return reply.status();
    std::vector<RedisReply>& elements = reply->elements;
    if (!reply->is_array() || elements.size() % 2 != 0) return Unexpected("HGETALL");
    Hash hash;
    for (size_t i = 0; i < elements.size(); i += 2) {
      hash.fields[std::move(elements[i].text)] = std::move(elements[i + 1].text);
    }
    return hash;
  }

  absl::StatusOr<Fields> ReadFields(absl::string_view key,
                                    const std::vector<absl::string_view>& fields) override {
    RedisCommand command{.key = key, .arguments = {"HMGET", key}};
    command.arguments.insert(command.arguments.end(), fields.begin(), fields.end());
    absl::StatusOr<RedisReply> reply = nodes_.Call(command);
    if (!reply.ok()) return reply.status();
    if (reply->elements.size() != fields.size()) return Unexpected("HMGET");
    Fields read;
    for (size_t i = 0; i < fields.size(); ++i) {
      RedisReply& value = reply->elements[i];
      if (value.kind == RedisReply::Kind::kText) read.emplace(fields[i], std::move(value.text));
    }
    return read;
  }

  absl::Status Change(const HashChange& change) override {
    const std::string script = absl::StrCat(change.when_full ? kWhenFull : kUnlessFull, kChange),
                      time_to_live = MillisecondsUntil(change.expires),
                      expected = RevisionText(change.revision),
                      next = absl::StrCat(change.next_revision),
                      removed = absl::StrCat(change.removed.size());
    RedisCommand command{
        .key = change.key,
        .arguments = {"EVAL", script, "1", change.key, time_to_live, expected, next, removed}};
    auto& arguments = command.arguments;
    arguments.insert(arguments.end(), change.removed.begin(), change.removed.end());
    for (const auto& [field, value] : change.put) {
      arguments.insert(arguments.end(), {field, value});
    }
    const absl::StatusOr<RedisReply> reply = nodes_.Call(command);
    if (!reply.ok()) return reply.status();
    if (!reply->is_integer() || reply->integer >> 1 != 0) return Unexpected("a change");
    return reply->integer == 1 ? absl::OkStatus() : absl::AbortedError("it has changed");
  }

  void DropNotedBehind() {
    behind_.Schedule("", [this] {
      if (must_drop_.exchange(false) && !DropNoted().ok()) must_drop_ = true;
    });
  }

  absl::Status DropNoted() {
    const absl::StatusOr<Hash> notes = Read(kDrops);
    if (!notes.ok()) return notes.status();
    for (const auto& [note, nothing] : notes->fields) {
      if (note == kRevisionField) continue;
      // Leaves the number out.
      const std::pair<absl::string_view, absl::string_view> range = absl::StrSplit(note, ' ');
      absl::Status status = DropRange(range.first, range.second);
      if (status.ok()) {
        status = nodes_.Call({.key = kDrops, .arguments = {"HDEL", kDrops, note}}).status();
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status DropRange(absl::string_view first, absl::string_view last) {
    const auto primaries = nodes_.Primaries();
    if (!primaries.ok()) return primaries.status();
    // Without the digits of the incarnation.
    const std::string pattern =
        absl::StrCat(first.substr(0, std::max(first.size(), size_t{17}) - 17), "*");
    for (const RedisNode& node : *primaries) {
      std::string cursor = "0";
      do {
        if (stopping_) return absl::CancelledError();
        const auto found = nodes_.Call(
            {.node = node, .arguments = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}});
        if (!found.ok()) return found.status();
        if (found->elements.size() != 2) return Unexpected("SCAN");
        std::vector<RedisCommand> removals;
        for (const RedisReply& key : found->elements[1].elements) {
          if (key.text < first || key.text >= last) continue;
          removals.push_back({.key = key.text, .arguments = {"UNLINK", key.text}});
        }
        for (const auto& removed : nodes_.CallAll(removals)) {
          if (!removed.ok()) return removed.status();
        }
        cursor = found->elements[0].text;
      } while (cursor != "0");
    }
    return absl::OkStatus();
  }

  RedisNodes nodes_;
  const std::string sender_ = absl::StrCat(NewRevision());  // of this store's own news
  Mutex news_mutex_;
  // Start of the next XRANGE.
  std::string news_after_ ABSL_GUARDED_BY(news_mutex_) = "-";
  // True if sis:drops may have notes, of this server or one that has stopped.
  std::atomic<bool> must_drop_ = true;
  std::atomic<bool> stopping_ = false;
  WorkerPool behind_{1};  // destroyed first
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenRedis(std::string_view address,
                                                 std::string_view server_name) {
  absl::StatusOr<RedisAddress> parsed = ParseRedisAddress(address);
  if (!parsed.ok()) return parsed.status();
  auto store = std::make_unique<RedisStore>(*std::move(parsed), server_name);
  if (absl::Status status = store->Open(); !status.ok()) return status;
  return store;
}

}  // namespace sis
