#include "tests/compatibility/stored_fixture.h"

#include <google/protobuf/text_format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/column.h"
#include "server/cache/long_sums.h"
#include "server/cache/missing.h"
#include "server/cache/step_history.h"
#include "server/store/sequence_store.h"
#include "server/store/stored_history.h"
#include "server/testing/items_in_memory.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"

namespace sis {
namespace {

constexpr int kSlots = 3;
// Of the run with a mass, before it cuts.
constexpr int kManySlots = 12;
// More than a page, so that a whole form has one that is full and one that isn't.
constexpr uint32_t kSealed = 70;
constexpr uint32_t kGrowing = 12;
// Of the run with columns, the positions whose values come with the records.
constexpr uint32_t kWithColumns = 20;
constexpr uint32_t kLossMask = 0, kExperts = 1;
constexpr uint32_t kExpertsWidth = 2 * kManySlots;

std::unique_ptr<SequenceStore> StoreOf(ItemMap& map) {
  return std::make_unique<SequenceStore>(std::make_unique<ItemsInMemory>(map));
}

Records AppendedRecords(int slots = kSlots) {
  return RecordGenerator(slots, 1000, 1).NextRecords(kSealed);
}

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

void AppendTo(Replica& replica, const v1::AppendEntry& entry) {
  const v1::Ack ack = replica.Append(entry);
  EXPECT_EQ(ack.code(), 0) << ack.message();
}

void Fill(Replica& replica) {
  const auto append = [&](const v1::AppendEntry& entry) { AppendTo(replica, entry); };
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

v1::RunConfig ConfigWithMass() {
  v1::RunConfig config = ConfigOf(v1::FIXED12);
  config.set_top_k(kManySlots);
  config.set_mass(0.75);
  v1::Column& loss_mask = *config.add_columns();
  loss_mask.set_name("loss_mask");
  loss_mask.set_bytes(1);
  v1::Column& experts = *config.add_columns();
  experts.set_name("experts");
  experts.set_bytes(2);
  experts.set_per_slot(true);
  return config;
}

// Of a column, at positions [first, first + count).
std::string ColumnBytes(uint32_t column, uint32_t width, uint32_t first, uint32_t count) {
  std::string bytes;
  for (uint32_t i = first * width; i < (first + count) * width; ++i) {
    bytes += static_cast<char>(100 * column + 7 * i);
  }
  return bytes;
}

void FillWithMass(Replica& replica) {
  const Records records = AppendedRecords(kManySlots);
  for (const std::string id : {"sealed", "growing"}) {
    v1::AppendEntry first, rest, later;
    v1::Block& block = *first.mutable_block();
    block = records.Block(id, 0, 1, 0, kWithColumns);
    block.add_columns(ColumnBytes(kLossMask, 1, 0, kWithColumns));
    block.add_columns(ColumnBytes(kExperts, kExpertsWidth, 0, kWithColumns));
    AppendTo(replica, first);
    const uint32_t more = id == "sealed" ? kSealed - kWithColumns : kGrowing;
    *rest.mutable_block() = records.Block(id, kWithColumns, 2, kWithColumns, more);
    AppendTo(replica, rest);
    v1::ColumnBlock& column = *later.mutable_column();
    column.mutable_sequence()->set_id(id);
    column.set_first_position(kWithColumns);
    column.set_length(more);
    column.set_column("loss_mask");
    column.set_values(ColumnBytes(kLossMask, 1, kWithColumns, more));
    AppendTo(replica, later);
  }
  v1::AppendEntry entry;
  v1::Seal& seal = *entry.mutable_seal();
  seal.mutable_sequence()->set_id("sealed");
  seal.set_length(kSealed);
  seal.mutable_annotation()->set_prompt("prompt");
  seal.mutable_annotation()->set_text("text");
  seal.mutable_annotation()->set_group("group");
  seal.mutable_annotation()->set_reward(-0.5);
  AppendTo(replica, entry);
}

StepHistory HistoryToStore() {
  StepHistory history;
  for (int draw = 1; draw <= 3; ++draw) {
    DrawStretch stretch;
    stretch.first_draw = 10 + draw;
    stretch.last_draw = 10 + draw;
    stretch.draws = 1;
    stretch.begun = absl::FromUnixSeconds(1000 * draw);
    stretch.ended = absl::FromUnixSeconds(1000 * draw + 1);
    stretch.sequences = 2 * draw;
    stretch.sums.accepted = 30 * draw;
    stretch.sums.rejected = draw;
    stretch.sums.d = 0.25 * draw;
    stretch.missing[static_cast<size_t>(MissingReason::kStale)] = draw;
    stretch.clipped.weight = 1.5 * draw;
    stretch.uncounted = 5 * draw;
    history.Add(stretch);
  }
  return history;
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

std::string DescribeColumn(uint32_t column, uint32_t position, absl::string_view bytes) {
  return absl::StrCat("column ", column, " at ", position, ": ", absl::BytesToHexString(bytes),
                      "\n");
}

std::string DescribeColumns(const Sequence& sequence) {
  std::string lines;
  const Sequence::Reader reader(sequence);
  const absl::Status status = reader.ForEachColumn([&](uint32_t first, const ColumnValues& values) {
    const absl::string_view bytes(reinterpret_cast<const char*>(values.values.data()),
                                  values.values.size());
    for (uint32_t i = 0; i < values.positions(); ++i) {
      absl::StrAppend(&lines, DescribeColumn(values.column, first + i,
                                             bytes.substr(i * values.width, values.width)));
    }
  });
  return status.ok() ? lines : absl::StrCat(lines, status.ToString(), "\n");
}

std::string DescribeAnnotation(const Sequence& sequence) {
  std::string text;
  v1::Annotation annotation;
  if (!annotation.ParseFromString(sequence.annotation())) return "unreadable annotation\n";
  google::protobuf::TextFormat::PrintToString(annotation, &text);
  return text;
}

std::string DescribeHistory(const absl::StatusOr<std::string>& stored) {
  if (absl::IsNotFound(stored.status())) return "";
  const absl::StatusOr<StepHistory> history = stored.ok() ? ParseHistory(*stored) : stored.status();
  if (!history.ok()) return absl::StrCat("history: ", history.status().ToString(), "\n");
  std::string lines;
  const auto add = [&](auto value) { absl::StrAppend(&lines, " ", value); };
  for (const DrawStretch& stretch : history->stretches()) {
    absl::StrAppend(&lines, "draws ", stretch.first_draw, " to ", stretch.last_draw, ": ",
                    stretch.draws, "; from ", absl::ToUnixSeconds(stretch.begun), " to ",
                    absl::ToUnixSeconds(stretch.ended), "; sequences ", stretch.sequences,
                    "; uncounted ", stretch.uncounted, "; sums");
    LongSums::ForEachField(add, stretch.sums);
    absl::StrAppend(&lines, "; missing");
    for (const int64_t positions : stretch.missing) add(positions);
    for (const CorrectionTotals* totals : {&stretch.plain, &stretch.clipped, &stretch.applied}) {
      absl::StrAppend(&lines, "; correction");
      CorrectionTotals::ForEachField(add, *totals);
    }
    absl::StrAppend(&lines, "\n");
  }
  return lines;
}

std::string DescribeSequence(Replica& replica, const SequenceIdentity& identity) {
  std::vector<uint32_t> columns(replica.run().config().columns.size());
  std::iota(columns.begin(), columns.end(), 0);
  const Run::Found found =
      replica.stored().Find(replica.run(), {identity.id, identity.attempt}, 0, 0, columns);
  if (const auto* reason = std::get_if<MissingReason>(&found)) {
    return absl::StrCat("missing: ", v1::MissingReason_Name(ToMessage(*reason)), "\n");
  }
  const Sequence& sequence = *std::get<std::shared_ptr<Sequence>>(found);
  const std::optional<uint32_t> sealed = sequence.sealed_length();
  return absl::StrCat("key ", absl::Hex(sequence.key()),
                      sealed.has_value() ? absl::StrCat(", sealed at ", *sealed) : "", "\n",
                      DescribeAnnotation(sequence), DescribePositions(sequence),
                      DescribeColumns(sequence));
}

}  // namespace

StoredItems MakeItems() {
  ItemMap map;
  for (const v1::LogProbEncoding encoding : {v1::FLOAT32, v1::FLOAT16, v1::FIXED12}) {
    Replica replica(StoreOf(map), ConfigOf(encoding), v1::LogProbEncoding_Name(encoding));
    Fill(replica);
  }
  Replica with_mass(StoreOf(map), ConfigWithMass(), "MASS");
  FillWithMass(with_mass);
  const std::string history = EncodeHistory(HistoryToStore());
  EXPECT_TRUE(StoreOf(map)->PutHistory("MASS", with_mass.run().incarnation(), history).ok());
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
    absl::StrAppend(&text, printed,
                    DescribeHistory(store->GetHistory(run.run_id, run.incarnation)));
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

std::string DescribeAppendedColumns() {
  std::string lines;
  const auto add = [&](uint32_t column, uint32_t width, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      absl::StrAppend(&lines, DescribeColumn(column, i, ColumnBytes(column, width, i, 1)));
    }
  };
  add(kLossMask, 1, kSealed);
  add(kExperts, kExpertsWidth, kWithColumns);
  return lines;
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
