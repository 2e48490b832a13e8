#include "server/store/redis/redis_store.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/store/redis/redis_address.h"
#include "server/store/redis/redis_nodes.h"
#include "server/store/redis/redis_records.h"
#include "server/threads/mutex.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

// Time for which the record of a deleted run is kept. Until then a run of the same id gets a later
// incarnation, and late workers of the deleted one are refused.
constexpr absl::Duration kDeletionKept = absl::Hours(30 * 24);
// For steps of incarnations that no server drops any more.
constexpr absl::Duration kStepsKept = absl::Hours(30 * 24);
constexpr absl::Duration kProbePeriod = absl::Seconds(1);
constexpr size_t kMaxSequenceBytes = size_t{1} << 29;
constexpr size_t kMaxDropsAtOnce = 256;
constexpr absl::string_view kDrops = "sis:drops", kRuns = "sis:runs", kNews = "sis:news";
// Servers send once a second at most.
constexpr absl::string_view kMaxNews = "300";
// The field of sis:runs that changes with every other; those of runs begin with 'r'.
constexpr absl::string_view kRunsVersion = "v";

// Scripts run only on Redis 7 and later. Without flags Redis refuses them if maxmemory is reached.
// They return 0, or {a refusal, position}.
enum Refusal : int64_t { kDropped = 1, kOverlap = 2, kSealed = 3 };

// Arguments of both: the time to live in milliseconds, then fields and values.
constexpr absl::string_view kPut = R"(#!lua
local key, added, blocks = KEYS[1], {}, nil
if redis.call('HEXISTS', key, 'd') == 1 then return {1, 0} end
local stored_end = tonumber(redis.call('HGET', key, 'e') or '0')
local last = stored_end
for i = 2, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  local kind, there = field:sub(1, 1), redis.call('HGET', key, field)
  local add = not there
  if kind == 's' then
    if there and there:sub(1, 4) ~= value:sub(1, 4) then
      return {3, (struct.unpack('>I4', there))}
    end
    add = there ~= value
  elseif kind == 'b' and there ~= value then
    local first, count = struct.unpack('>I4I4', field, 2)
    if there then return {2, first} end
    if first < last then
      blocks = blocks or redis.call('HKEYS', key)
      for _, other in ipairs(blocks) do
        if other:sub(1, 1) == 'b' then
          local start, size = struct.unpack('>I4I4', other, 2)
          if first < start + size and start < first + count and other ~= field then
            return {2, first}
          end
        end
      end
    end
    last = math.max(last, first + count)
  end
  if add then
    added[#added + 1] = i
    if blocks then blocks[#blocks + 1] = field end
  end
end
for _, i in ipairs(added) do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
if #added > 0 then redis.call('HINCRBY', key, 'v', 1) end
if last > stored_end then redis.call('HSET', key, 'e', string.format('%.0f', last)) end
if redis.call('PTTL', key) < tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
return 0
)";

constexpr absl::string_view kMerge = R"(#!lua
local key, replaced = KEYS[1], {}
if redis.call('HEXISTS', key, 'd') == 1 then return {1, 0} end
local stored_end = tonumber(redis.call('HGET', key, 'e') or '0')
local last = stored_end
local fields = redis.call('HKEYS', key)
for i = 2, #ARGV, 2 do
  local first, count = struct.unpack('>I4I4', ARGV[i], 2)
  for _, field in ipairs(fields) do
    if field:sub(1, 1) == 'b' then
      local start, size = struct.unpack('>I4I4', field, 2)
      if first < start + size and start < first + count then
        if start < first or start + size > first + count then return {2, first} end
        replaced[#replaced + 1] = field
      end
    end
  end
  last = math.max(last, first + count)
end
for _, field in ipairs(replaced) do redis.call('HDEL', key, field) end
for i = 2, #ARGV, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
redis.call('HINCRBY', key, 'v', 1)
if last > stored_end then redis.call('HSET', key, 'e', string.format('%.0f', last)) end
if redis.call('PTTL', key) < tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
return 0
)";

// Arguments: the time to live, the reason. Returns 1 if there were parts.
constexpr absl::string_view kDrop = R"(#!lua flags=allow-oom
local key, had = KEYS[1], 0
if redis.call('HEXISTS', key, 'd') == 0 then
  local revision = tonumber(redis.call('HGET', key, 'v') or '0') + 1
  had = redis.call('DEL', key)
  redis.call('HSET', key, 'd', ARGV[2], 'v', string.format('%.0f', revision))
end
if redis.call('PTTL', key) < tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
return had
)";

// Arguments: a field, the expected value, the new value, the new version. An empty value stands for
// no field. Returns 1 if the value was the expected one.
constexpr absl::string_view kExchangeRun = R"(#!lua flags=allow-oom
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
redis.call('HSET', KEYS[1], 'v', ARGV[4])
return 1
)";

// Arguments: the time to live, then slots and payloads.
constexpr absl::string_view kPutSteps = R"(#!lua flags=allow-oom
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 0
)";

constexpr absl::string_view kNoteDrop = R"(#!lua flags=allow-oom
return redis.call('SADD', KEYS[1], ARGV[1])
)";

// Writes nothing, but is refused where writes are.
constexpr absl::string_view kProbe = "#!lua\nreturn 0\n";

struct Scripts {
  RedisScript put{kPut}, merge{kMerge}, drop{kDrop}, exchange_run{kExchangeRun},
      put_steps{kPutSteps}, note_drop{kNoteDrop};
};

// A time to live, unlike a time, needs no clocks that agree. 0 removes the key at once.
std::string MillisecondsUntil(absl::Time expires) {
  constexpr int64_t kMax = int64_t{100} * 366 * 24 * 3600 * 1000;
  return absl::StrCat(
      std::clamp(absl::ToInt64Milliseconds(expires - absl::Now()), int64_t{0}, kMax));
}

std::string RandomBytes() {
  std::random_device random;
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += static_cast<char>(random());
  return bytes;
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

class RedisStore final : public Store {
 public:
  RedisStore(RedisAddress address, std::string_view server_name)
      : server_name_(server_name), nodes_(std::move(address)) {}

  ~RedisStore() override {
    {
      WriterLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (dropper_.joinable()) dropper_.join();
  }

  // Checks all primaries, warns of what they may lose, and starts the background thread.
  absl::Status Open() {
    const absl::Time deadline = nodes_.Deadline();
    const auto topology = nodes_.Refresh(deadline);
    if (!topology.ok()) return topology.status();
    for (const RedisNode& node : (*topology)->primaries) {
      const RedisCommand command{.arguments = {"INFO"}};
      std::vector<RedisReply> replies;
      absl::Status status = nodes_.Ask(node, {&command, 1}, deadline, replies);
      if (!status.ok()) return status;
      const std::string name = absl::StrCat("redis ", ToString(node), ": ");
      const absl::string_view info = replies[0].text;
      if (replies[0].is_error()) {
        status = RedisError(info);
        return absl::Status(status.code(), absl::StrCat(name, status.message()));
      }
      const absl::string_view version = InfoOf(info, "redis_version");
      int major = 0;
      if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &major) || major < 7) {
        return absl::UnavailableError(
            absl::StrCat(name, "version ", version.empty() ? "unknown" : version.substr(0, 20),
                         " is too old; must be Redis 7 or Valkey"));
      }
      Warn(name, info);
    }
    const absl::Status can_put = CanPut();
    // A store that is full still answers.
    if (!can_put.ok() && !absl::IsResourceExhausted(can_put)) return can_put;
    dropper_ = std::thread([this] { DropBehind(); });
    return absl::OkStatus();
  }

  bool shared() const override { return true; }

  absl::Status CanPut() override {
    {
      WriterLock lock(mutex_);
      if (SteadyNow() < probed_ + kProbePeriod) return can_put_;
      probed_ = SteadyNow();
    }
    absl::Status status = Probe();
    WriterLock lock(mutex_);
    return can_put_ = std::move(status);
  }

  absl::Status Put(const SequenceIdentity& sequence, std::span<const StoredPart> parts,
                   absl::Time expires) override {
    return Write(scripts_.put, sequence, parts, expires);
  }
  absl::Status Merge(const SequenceIdentity& sequence, std::span<const StoredPart> blocks,
                     absl::Time expires) override {
    return Write(scripts_.merge, sequence, blocks, expires);
  }

  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override {
    const std::string key = RedisSequenceKey(sequence);
    absl::StatusOr<RedisReply> reply =
        Call({.key = key, .arguments = {"HGETALL", key}, .max_reply_bytes = kMaxSequenceBytes});
    if (!reply.ok()) return reply.status();
    absl::StatusOr<StoredSequence> stored = ParseSequence(*std::move(reply));
    if (stored.ok()) return stored;
    return absl::Status(stored.status().code(),
                        absl::StrCat(ToString(sequence), ": ", stored.status().message()));
  }

  absl::StatusOr<uint64_t> Revision(const SequenceIdentity& sequence) override {
    const std::string key = RedisSequenceKey(sequence);
    const absl::StatusOr<RedisReply> reply = Call({.key = key, .arguments = {"HGET", key, "v"}});
    if (!reply.ok()) return reply.status();
    uint64_t revision = 0;
    if (reply->kind != RedisReply::Kind::kNil && !absl::SimpleAtoi(reply->text, &revision)) {
      return Unexpected("HGET");
    }
    return revision;
  }

  absl::StatusOr<std::vector<std::string>> ExchangeNews(
      std::span<const std::string> news) override {
    RedisCommand send{.key = std::string(kNews),
                      .arguments = {"XADD", kNews, "MAXLEN", kMaxNews, "*"}};
    for (const std::string& item : news) send.arguments.insert(send.arguments.end(), {"n", item});
    std::string after;
    {
      ReaderLock lock(mutex_);
      after = news_after_;
    }
    std::vector<RedisCommand> commands;
    if (!news.empty()) commands.push_back(std::move(send));
    commands.push_back({.key = std::string(kNews), .arguments = {"XRANGE", kNews, after, "+"}});
    std::vector<absl::StatusOr<RedisReply>> replies = nodes_.Call(commands, nodes_.Deadline());
    for (const auto& reply : replies) {
      if (!reply.ok()) return reply.status();
    }
    std::vector<std::string> heard;
    for (RedisReply& entry : replies.back()->elements) {
      if (entry.elements.size() != 2) return Unexpected("XRANGE");
      after = "(" + entry.elements[0].text;
      std::vector<RedisReply>& items = entry.elements[1].elements;
      for (size_t i = 1; i < items.size(); i += 2) heard.push_back(std::move(items[i].text));
    }
    WriterLock lock(mutex_);
    news_after_ = std::move(after);
    return heard;
  }

  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override {
    const absl::Time deadline = nodes_.Deadline();
    const std::string time_to_live = MillisecondsUntil(expires);
    std::vector<bool> had_parts;
    for (; !sequences.empty();
         sequences = sequences.subspan(std::min(sequences.size(), kMaxDropsAtOnce))) {
      std::vector<RedisCommand> commands;
      for (const DroppedSequence& dropped :
           sequences.first(std::min(sequences.size(), kMaxDropsAtOnce))) {
        const auto* const reason = reinterpret_cast<const char*>(&dropped.reason);
        commands.push_back({.key = RedisSequenceKey(dropped.sequence),
                            .script = &scripts_.drop,
                            .arguments = {time_to_live, {reason, 1}}});
      }
      for (const absl::StatusOr<RedisReply>& reply : nodes_.Call(commands, deadline)) {
        if (!reply.ok()) return reply.status();
        if (!reply->is_integer()) return Unexpected("a drop");
        had_parts.push_back(reply->integer != 0);
      }
    }
    return had_parts;
  }

  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override {
    const absl::Time deadline = nodes_.Deadline();
    for (;;) {
      StoredRun stays = run;
      const absl::StatusOr<std::string> there = RunRecord(run.run_id, deadline);
      if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
      if (there.ok()) {
        const absl::StatusOr<RedisRun> stored = ParseRun(run.run_id, *there);
        if (stored.ok()) stays = Merged(stored->run, run);
        if (stored.ok() && stays == stored->run) return stays;
      }
      const std::string record = EncodeRun({stays, absl::Now() + kDeletionKept});
      const absl::StatusOr<bool> done =
          ExchangeRun(run.run_id, there.ok() ? *there : "", record, deadline);
      if (!done.ok()) return done.status();
      if (*done) return stays;
      if (SteadyNow() >= deadline) {
        return absl::UnavailableError(
            absl::StrCat("redis: the record of run '", run.run_id, "' changes all the time"));
      }
    }
  }

  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    const absl::StatusOr<std::string> record = RunRecord(run_id, nodes_.Deadline());
    if (!record.ok()) return record.status();
    absl::StatusOr<RedisRun> run = ParseRun(run_id, *record);
    if (!run.ok()) return run.status();
    return std::move(run->run);
  }

  // Reads all records only after one has changed.
  absl::StatusOr<ListedRuns> ListRuns() override {
    const absl::Time deadline = nodes_.Deadline();
    absl::StatusOr<RedisReply> version =
        Call({.key = std::string(kRuns), .arguments = {"HGET", kRuns, kRunsVersion}}, deadline);
    if (!version.ok()) return version.status();
    {
      ReaderLock lock(mutex_);
      if (!version->text.empty() && version->text == runs_version_) return runs_;
    }
    absl::StatusOr<RedisReply> all =
        Call({.key = std::string(kRuns), .arguments = {"HGETALL", kRuns}}, deadline);
    if (!all.ok()) return all.status();
    if (!all->is_array() || all->elements.size() % 2 != 0) return Unexpected("HGETALL");
    ListedRuns listed;
    std::string listed_version;
    for (size_t i = 0; i < all->elements.size(); i += 2) {
      absl::string_view field = all->elements[i].text;
      const std::string& record = all->elements[i + 1].text;
      if (field == kRunsVersion) {
        listed_version = record;
      } else if (absl::ConsumePrefix(&field, "r")) {
        absl::StatusOr<RedisRun> run = ParseRun(field, record);
        if (!run.ok()) {
          listed.unreadable.emplace_back(std::string(field), run.status());
        } else if (run->expires < absl::Now()) {
          ExchangeRun(std::string(field), record, "", deadline).IgnoreError();
        } else {
          listed.runs.push_back(std::move(run->run));
        }
      }
    }
    std::sort(listed.runs.begin(), listed.runs.end(),
              [](const StoredRun& a, const StoredRun& b) { return a.run_id < b.run_id; });
    WriterLock lock(mutex_);
    runs_version_ = std::move(listed_version);
    runs_ = listed;
    return listed;
  }

  // Removes them in the background, as it looks at all keys. The note in sis:drops outlives this
  // server.
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    const std::string note = absl::StrCat(first, "/", last, "/", run_id);
    absl::Status status =
        Call({.key = std::string(kDrops), .script = &scripts_.note_drop, .arguments = {note}})
            .status();
    if (!status.ok()) return status;
    {
      WriterLock lock(mutex_);
      must_drop_ = true;
    }
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot) override {
    const std::string time_to_live = MillisecondsUntil(absl::Now() + kStepsKept);
    std::deque<std::string> slots;
    RedisCommand command{.key = RedisStepsKey(run_id, incarnation, server_name_),
                         .script = &scripts_.put_steps,
                         .arguments = {time_to_live}};
    for (const auto& [slot, payload] : by_slot) {
      command.arguments.push_back(slots.emplace_back(absl::StrCat(slot)));
      command.arguments.push_back(payload);
    }
    return Call(std::move(command)).status();
  }

  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation) override {
    const std::string key = RedisStepsKey(run_id, incarnation, server_name_);
    absl::StatusOr<RedisReply> reply = Call({.key = key, .arguments = {"HVALS", key}});
    if (!reply.ok()) return reply.status();
    if (!reply->is_array()) return Unexpected("HVALS");
    std::vector<absl::StatusOr<std::string>> payloads;
    for (RedisReply& payload : reply->elements) {
      if (!payload.is_text()) return Unexpected("HVALS");
      payloads.emplace_back(std::move(payload.text));
    }
    return payloads;
  }

 private:
  absl::StatusOr<RedisReply> Call(RedisCommand command, absl::Time deadline) {
    return std::move(nodes_.Call({&command, 1}, deadline)[0]);
  }
  absl::StatusOr<RedisReply> Call(RedisCommand command) {
    return Call(std::move(command), nodes_.Deadline());
  }

  bool is_stopping() {
    ReaderLock lock(mutex_);
    return stopping_;
  }

  static void Warn(absl::string_view name, absl::string_view info) {
    if (InfoOf(info, "aof_enabled") == "0") {
      std::cerr << "store: " << name
                << "appendonly is no: if this node fails, acknowledged blocks since its last "
                   "snapshot are lost, all of them without snapshots"
                << std::endl;
    }
    const absl::string_view policy = InfoOf(info, "maxmemory_policy");
    if (InfoOf(info, "maxmemory") != "0" && !policy.empty() && policy != "noeviction") {
      std::cerr << "store: " << name << "maxmemory-policy is " << policy.substr(0, 40)
                << ": where memory is short, acknowledged blocks are lost; must be noeviction"
                << std::endl;
    }
  }

  absl::Status Probe() {
    const absl::Time deadline = nodes_.Deadline();
    const auto topology = nodes_.Refresh(deadline);
    if (!topology.ok()) return topology.status();
    const RedisCommand command{.arguments = {"EVAL", kProbe, "0"}};
    for (const RedisNode& node : (*topology)->primaries) {
      std::vector<RedisReply> replies;
      absl::Status status = nodes_.Ask(node, {&command, 1}, deadline, replies);
      if (status.ok() && replies[0].is_error()) status = RedisError(replies[0].text);
      if (!status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("redis ", ToString(node), ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Write(const RedisScript& script, const SequenceIdentity& sequence,
                     std::span<const StoredPart> parts, absl::Time expires) {
    const std::string time_to_live = MillisecondsUntil(expires);
    std::deque<std::string> strings;
    RedisCommand command{
        .key = RedisSequenceKey(sequence), .script = &script, .arguments = {time_to_live}};
    for (const StoredPart& part : parts) {
      const bool seal = part.kind == StoredPart::Kind::kSeal;
      command.arguments.push_back(strings.emplace_back(RedisField(part)));
      command.arguments.push_back(seal ? strings.emplace_back(RedisSeal(part)) : part.bytes);
    }
    const absl::StatusOr<RedisReply> reply = Call(std::move(command));
    if (!reply.ok()) {
      return absl::Status(reply.status().code(),
                          absl::StrCat(ToString(sequence), ": ", reply.status().message()));
    }
    if (reply->is_integer() && reply->integer == 0) return absl::OkStatus();
    if (!reply->is_array() || reply->elements.size() != 2) return Unexpected("a write");
    const int64_t position = reply->elements[1].integer;
    switch (reply->elements[0].integer) {
      case kDropped:
        return absl::FailedPreconditionError(absl::StrCat(ToString(sequence), " was dropped"));
      case kOverlap:
        return absl::AlreadyExistsError(absl::StrCat(ToString(sequence), ": the block at position ",
                                                     position,
                                                     " overlaps a stored block that differs"));
      case kSealed:
        return absl::FailedPreconditionError(
            absl::StrCat(ToString(sequence), " is sealed at ", position));
      default:
        return Unexpected("a write");
    }
  }

  absl::StatusOr<std::string> RunRecord(const std::string& run_id, absl::Time deadline) {
    const std::string field = "r" + run_id;
    absl::StatusOr<RedisReply> reply =
        Call({.key = std::string(kRuns), .arguments = {"HGET", kRuns, field}}, deadline);
    if (!reply.ok()) return reply.status();
    if (reply->kind == RedisReply::Kind::kNil) return absl::NotFoundError("no such run is stored");
    if (!reply->is_text()) return Unexpected("HGET");
    return std::move(reply->text);
  }

  // Returns false if the record is no longer `expected`.
  absl::StatusOr<bool> ExchangeRun(const std::string& run_id, const std::string& expected,
                                   const std::string& record, absl::Time deadline) {
    const std::string field = "r" + run_id, version = RandomBytes();
    const absl::StatusOr<RedisReply> reply = Call({.key = std::string(kRuns),
                                                   .script = &scripts_.exchange_run,
                                                   .arguments = {field, expected, record, version}},
                                                  deadline);
    if (!reply.ok()) return reply.status();
    if (!reply->is_integer()) return Unexpected("a record of a run");
    return reply->integer == 1;
  }

  void DropBehind() {
    for (bool again = false;;) {
      {
        WriterLock lock(mutex_);
        if (again && !stopping_) changed_.wait_for(mutex_, std::chrono::seconds(1));
        while (!stopping_ && !must_drop_ && !again) changed_.wait(mutex_);
        if (stopping_) return;
        must_drop_ = false;
      }
      again = !DropNoted().ok();
    }
  }

  absl::Status DropNoted() {
    const absl::StatusOr<RedisReply> notes =
        Call({.key = std::string(kDrops), .arguments = {"SMEMBERS", kDrops}});
    if (!notes.ok()) return notes.status();
    for (const RedisReply& note : notes->elements) {
      const std::vector<absl::string_view> words =
          absl::StrSplit(note.text, absl::MaxSplits('/', 2));
      uint64_t first = 0, last = 0;
      if (words.size() == 3 && absl::SimpleAtoi(words[0], &first) &&
          absl::SimpleAtoi(words[1], &last)) {
        if (absl::Status status = DropNow(words[2], first, last); !status.ok()) return status;
      }
      absl::Status status =
          Call({.key = std::string(kDrops), .arguments = {"SREM", kDrops, note.text}}).status();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status DropNow(absl::string_view run_id, uint64_t first, uint64_t last) {
    const auto topology = nodes_.Refresh(nodes_.Deadline());
    if (!topology.ok()) return topology.status();
    const std::string pattern = RedisRunPattern(run_id);
    for (const RedisNode& node : (*topology)->primaries) {
      std::string cursor = "0";
      do {
        if (is_stopping()) return absl::CancelledError();
        const RedisCommand scan{.arguments = {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}};
        std::vector<RedisReply> replies;
        absl::Status status = nodes_.Ask(node, {&scan, 1}, nodes_.Deadline(), replies);
        if (!status.ok()) return status;
        std::vector<RedisReply>& found = replies[0].elements;
        if (found.size() != 2 || !found[0].is_text()) return Unexpected("SCAN");
        std::vector<RedisCommand> removals;
        for (const RedisReply& key : found[1].elements) {
          if (IsOfIncarnations(key.text, run_id, first, last)) {
            removals.push_back({.key = key.text, .arguments = {"UNLINK", key.text}});
          }
        }
        for (const auto& removed : nodes_.Call(removals, nodes_.Deadline())) {
          if (!removed.ok()) return removed.status();
        }
        cursor = std::move(found[0].text);
      } while (cursor != "0");
    }
    return absl::OkStatus();
  }

  const std::string server_name_;
  const Scripts scripts_;
  RedisNodes nodes_;
  Mutex mutex_;
  absl::Time probed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Status can_put_ ABSL_GUARDED_BY(mutex_);
  // Start of the next XRANGE.
  std::string news_after_ ABSL_GUARDED_BY(mutex_) = "-";
  // The last result of ListRuns, and its version.
  std::string runs_version_ ABSL_GUARDED_BY(mutex_);
  ListedRuns runs_ ABSL_GUARDED_BY(mutex_);
  // Notes may be left of a server that has stopped.
  bool must_drop_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::condition_variable_any changed_;
  std::thread dropper_;
};

}  // namespace

absl::Status CheckRedisAddress(std::string_view address) {
  return ParseRedisAddress(address).status();
}

absl::StatusOr<std::unique_ptr<Store>> OpenRedis(std::string_view address,
                                                 std::string_view server_name) {
  absl::StatusOr<RedisAddress> parsed = ParseRedisAddress(address);
  if (!parsed.ok()) return parsed.status();
  auto store = std::make_unique<RedisStore>(*std::move(parsed), server_name);
  if (absl::Status status = store->Open(); !status.ok()) return status;
  return store;
}

}  // namespace sis
