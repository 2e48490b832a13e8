#include "tests/compatibility/stored_fixture.h"

#include <google/protobuf/text_format.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/store/sequence_store.h"
#include "server/testing/items_in_memory.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"

namespace sis {
namespace {

constexpr int kSlots = 3;
// More than a page, so that a whole form has one that is full and one that isn't.
constexpr uint32_t kSealed = 70;
constexpr uint32_t kGrowing = 12;

std::unique_ptr<SequenceStore> StoreOf(ItemMap& map) {
  return std::make_unique<SequenceStore>(std::make_unique<ItemsInMemory>(map));
}

Records AppendedRecords() { return RecordGenerator(kSlots, 1000, 1).NextRecords(kSealed); }

v1::RunConfig ConfigOf(v1::LogProbEncoding encoding) {
  v1::RunConfig config;
  config.set_seed(uint64_t{1} << 63);
  config.set_vocabulary_size(1000);
  config.set_top_k(kSlots);
  config.set_time_to_live_seconds(86400);
  config.set_max_staleness(8);
  config.set_byte_quota(1 << 20);
  config.set_task("task");
  config.set_algorithm("algorithm");
  config.set_model("model");
  config.set_log_prob_encoding(encoding);
  config.set_evict_unread(true);
  return config;
}

v1::Block BlockOf(const std::string& id, uint32_t attempt, uint64_t version, uint32_t first,
                  uint32_t count) {
  v1::Block block = AppendedRecords().Block(id, first, version, first, count);
  block.mutable_sequence()->set_attempt(attempt);
  return block;
}

void Fill(Replica& replica) {
  const auto append = [&](const v1::AppendEntry& entry) {
    const v1::Ack ack = replica.Append(entry);
    EXPECT_EQ(ack.code(), 0) << ack.message();
  };
  const auto append_block = [&](const v1::Block& block) {
    v1::AppendEntry entry;
    *entry.mutable_block() = block;
    append(entry);
  };
  EXPECT_TRUE(replica.AdvanceVersion(3).ok());
  append_block(BlockOf("sealed", 0, 1, 0, 40));
  append_block(BlockOf("sealed", 0, 3, 40, kSealed - 40));
  v1::AppendEntry seal;
  seal.mutable_seal()->mutable_sequence()->set_id("sealed");
  seal.mutable_seal()->set_length(kSealed + 5);
  append(seal);

  append_block(BlockOf("growing", 0, 2, 0, kGrowing));
  append_block(BlockOf("growing", 0, 3, kGrowing + 8, kGrowing));
  v1::AppendEntry truncate;
  truncate.mutable_truncate()->mutable_sequence()->set_id("growing");
  truncate.mutable_truncate()->set_length(kGrowing + 10);
  append(truncate);

  append_block(BlockOf("growing", 1, 3, 0, 2));
  append_block(BlockOf("released", 0, 3, 0, 2));
  EXPECT_TRUE(replica.Release({"released"}).ok());
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

std::string DescribePosition(uint32_t position, uint64_t version, const RecordView& record,
                             uint16_t rank) {
  std::string line =
      absl::StrFormat("%d version %d: %d %08x rank %d;", position, version, record.sampled_ids[0],
                      Bits(record.sampled_log_probs[0]), static_cast<uint8_t>(rank));
  for (size_t slot = 0; slot < record.ids.size(); ++slot) {
    absl::StrAppendFormat(&line, " %d %08x", record.ids[slot], Bits(record.log_probs[slot]));
  }
  return line + "\n";
}

std::string DescribePositions(const Sequence& sequence) {
  std::string lines;
  const int slots = sequence.format().slots;
  const Sequence::Reader reader(sequence);
  reader.ForEachPiece(0, reader.committed_length(), [&](const Sequence::Reader::Piece& piece) {
    for (uint32_t i = 0; i < piece.count; ++i) {
      const uint32_t position = piece.first_position + i;
      if (piece.page == nullptr) {
        absl::StrAppend(&lines, position, " missing\n");
        continue;
      }
      int32_t sampled_id;
      float sampled_log_prob;
      uint16_t rank;
      std::vector<int32_t> ids(slots);
      std::vector<float> log_probs(slots);
      piece.page->Read(piece.index + i, {.sampled_ids = {&sampled_id, 1},
                                         .sampled_log_probs = {&sampled_log_prob, 1},
                                         .ids = ids,
                                         .log_probs = log_probs,
                                         .ranks = {&rank, 1}});
      const RecordView record{.sampled_ids = {&sampled_id, 1},
                              .sampled_log_probs = {&sampled_log_prob, 1},
                              .ids = ids,
                              .log_probs = log_probs};
      absl::StrAppend(&lines, DescribePosition(position, piece.version, record, rank));
    }
  });
  return lines;
}

std::string DescribeSequence(Replica& replica, const SequenceIdentity& identity) {
  const Run::Found found =
      replica.stored().Find(replica.run(), {identity.id, identity.attempt}, 0, 0, {});
  if (const auto* reason = std::get_if<MissingReason>(&found)) {
    return absl::StrCat("missing: ", v1::MissingReason_Name(ToMessage(*reason)), "\n");
  }
  const Sequence& sequence = *std::get<std::shared_ptr<Sequence>>(found);
  const std::optional<uint32_t> sealed = sequence.sealed_length();
  return absl::StrCat("key ", absl::Hex(sequence.key()),
                      sealed.has_value() ? absl::StrCat(", sealed at ", *sealed) : "", "\n",
                      DescribePositions(sequence));
}

}  // namespace

StoredItems MakeItems() {
  ItemMap map;
  for (const v1::LogProbEncoding encoding : {v1::FLOAT32, v1::FLOAT16, v1::FIXED12}) {
    Replica replica(StoreOf(map), ConfigOf(encoding), v1::LogProbEncoding_Name(encoding));
    Fill(replica);
  }
  EXPECT_TRUE(StoreOf(map)->PutRun({"deleted", 2, 9, ""}).ok());
  WriterLock lock(map.mutex);
  return std::move(map.items);
}

std::string FileOf(const StoredItems& items) {
  std::string file;
  for (const auto& [key, value] : items) {
    absl::StrAppend(&file, absl::Base64Escape(key), " ", absl::Base64Escape(value), "\n");
  }
  return file;
}

absl::StatusOr<StoredItems> ItemsOfFile(const std::string& file) {
  StoredItems items;
  std::istringstream words(file);
  for (std::string key, value; words >> key >> value;) {
    std::string unescaped;
    if (!absl::Base64Unescape(key, &unescaped) || !absl::Base64Unescape(value, &items[unescaped])) {
      return absl::InvalidArgumentError(absl::StrCat("no base64: ", key, " ", value));
    }
  }
  return items;
}

std::string Describe(StoredItems items) {
  ItemMap map;
  {
    WriterLock lock(map.mutex);
    map.items = std::move(items);
  }
  std::string text;
  const std::unique_ptr<SequenceStore> store = StoreOf(map);
  const absl::StatusOr<ListedRuns> listed = store->ListRuns();
  if (!listed.ok()) return listed.status().ToString();
  for (const auto& [id, why] : listed->unreadable) absl::StrAppend(&text, id, ": ", why.message());
  for (const StoredRun& run : listed->runs) {
    absl::StrAppend(&text, "run ", run.run_id, " incarnation ", run.incarnation, " policy version ",
                    run.policy_version, "\n");
    v1::RunConfig config;
    if (run.deleted() || !config.ParseFromString(run.config)) {
      absl::StrAppend(&text, run.deleted() ? "deleted\n" : "its configuration is no message\n");
      continue;
    }
    std::string printed;
    google::protobuf::TextFormat::PrintToString(config, &printed);
    absl::StrAppend(&text, printed);
    std::set<SequenceIdentity> sequences;
    const absl::Status status = store->ListSequences(
        [&](const std::string& run_id, uint64_t) { return run_id == run.run_id; },
        [&](const SequenceIdentity& sequence, bool) { sequences.insert(sequence); });
    if (!status.ok()) return status.ToString();
    // Removed already, so that nothing lists it; the reason is kept.
    sequences.insert({run.run_id, run.incarnation, "released", 0});
    Replica replica(StoreOf(map), config, run.run_id);
    for (const SequenceIdentity& sequence : sequences) {
      absl::StrAppend(&text, ToString(sequence), "\n", DescribeSequence(replica, sequence));
    }
  }
  return text;
}

std::string DescribeAppended() {
  const Records records = AppendedRecords();
  std::string lines;
  for (uint32_t i = 0; i < kSealed; ++i) {
    absl::StrAppend(&lines,
                    DescribePosition(i, i < 40 ? 1 : 3, records.View(i, 1), records.ranks[i]));
  }
  return lines;
}

}  // namespace sis
