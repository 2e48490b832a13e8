// A store in maps that outlive it, for tests. Several servers can use the same maps. Nothing
// expires.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"
#include "server/threads/mutex.h"

namespace sis {

struct StoreMaps {
  struct Sequence {
    std::map<uint32_t, StoredPart> blocks;
    std::vector<StoredPart> gaps;
    std::optional<StoredPart> seal;
    std::optional<uint8_t> dropped;
    uint64_t revision = 0;

    bool has_parts() const { return !blocks.empty() || !gaps.empty() || seal.has_value(); }
  };

  Mutex mutex;
  std::map<SequenceIdentity, Sequence> sequences ABSL_GUARDED_BY(mutex);
  std::map<std::string, StoredRun> runs ABSL_GUARDED_BY(mutex);
  std::map<std::tuple<std::string, std::string, uint64_t>, std::map<uint16_t, std::string>> steps
      ABSL_GUARDED_BY(mutex);  // of a server and an incarnation of a run
  std::vector<std::string> news ABSL_GUARDED_BY(mutex);
  int loads ABSL_GUARDED_BY(mutex) = 0;
};

class StoreInMemory : public Store {
 public:
  // `maps` must outlive the object. With a server's name the store is shared.
  explicit StoreInMemory(StoreMaps& maps, std::string server = "")
      : maps_(maps), server_(std::move(server)) {}

  bool shared() const override { return !server_.empty(); }
  absl::Status CanPut() override { return absl::OkStatus(); }

  absl::Status Put(const SequenceIdentity& sequence, std::span<const StoredPart> parts,
                   absl::Time) override {
    WriterLock lock(maps_.mutex);
    StoreMaps::Sequence changed = maps_.sequences[sequence];
    if (changed.dropped.has_value()) return absl::FailedPreconditionError("dropped");
    for (const StoredPart& part : parts) {
      if (part.kind == StoredPart::Kind::kGap) {
        if (std::ranges::find(changed.gaps, part) == changed.gaps.end()) {
          changed.gaps.push_back(part);
        }
      } else if (part.kind == StoredPart::Kind::kSeal) {
        if (changed.seal.has_value() && changed.seal->position != part.position) {
          return absl::FailedPreconditionError("sealed at another length");
        }
        changed.seal = part;
      } else if (const auto found = LastBefore(changed, part.position + part.count);
                 found != changed.blocks.end() && EndOf(found->second) > part.position) {
        if (found->second != part) return absl::AlreadyExistsError("overlaps");
      } else {
        changed.blocks.emplace(part.position, part);
      }
    }
    ++changed.revision;
    maps_.sequences[sequence] = std::move(changed);
    return absl::OkStatus();
  }

  absl::Status Merge(const SequenceIdentity& sequence, std::span<const StoredPart> blocks,
                     absl::Time) override {
    WriterLock lock(maps_.mutex);
    StoreMaps::Sequence changed = maps_.sequences[sequence];
    if (changed.dropped.has_value()) return absl::FailedPreconditionError("dropped");
    for (const StoredPart& block : blocks) {
      for (;;) {
        const auto found = LastBefore(changed, EndOf(block));
        if (found == changed.blocks.end() || EndOf(found->second) <= block.position) break;
        if (found->first < block.position || EndOf(found->second) > EndOf(block)) {
          return absl::AlreadyExistsError("overlaps");
        }
        changed.blocks.erase(found);
      }
      changed.blocks.emplace(block.position, block);
    }
    ++changed.revision;
    maps_.sequences[sequence] = std::move(changed);
    return absl::OkStatus();
  }

  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override {
    WriterLock lock(maps_.mutex);
    ++maps_.loads;
    const auto found = maps_.sequences.find(sequence);
    if (found == maps_.sequences.end()) return absl::NotFoundError("");
    StoredSequence stored{.dropped = found->second.dropped, .revision = found->second.revision};
    stored.parts = found->second.gaps;
    for (const auto& [position, block] : found->second.blocks) stored.parts.push_back(block);
    if (found->second.seal.has_value()) stored.parts.push_back(*found->second.seal);
    return stored;
  }

  absl::StatusOr<uint64_t> Revision(const SequenceIdentity& sequence) override {
    WriterLock lock(maps_.mutex);
    const auto found = maps_.sequences.find(sequence);
    return found == maps_.sequences.end() ? 0 : found->second.revision;
  }
  absl::StatusOr<std::vector<std::string>> ExchangeNews(
      std::span<const std::string> news) override {
    WriterLock lock(maps_.mutex);
    maps_.news.insert(maps_.news.end(), news.begin(), news.end());
    std::vector<std::string> heard(maps_.news.begin() + static_cast<ptrdiff_t>(heard_),
                                   maps_.news.end());
    heard_ = maps_.news.size();
    return heard;
  }

  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time) override {
    WriterLock lock(maps_.mutex);
    std::vector<bool> had_parts;
    for (const auto& [sequence, reason] : sequences) {
      StoreMaps::Sequence& dropped = maps_.sequences[sequence];
      had_parts.push_back(dropped.has_parts());
      dropped = {.dropped = dropped.dropped.value_or(reason), .revision = dropped.revision + 1};
    }
    return had_parts;
  }

  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override {
    WriterLock lock(maps_.mutex);
    StoredRun& there = maps_.runs.try_emplace(run.run_id, run).first->second;
    return there = Merged(there, run);
  }
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    WriterLock lock(maps_.mutex);
    const auto found = maps_.runs.find(run_id);
    if (found == maps_.runs.end()) return absl::NotFoundError("");
    return found->second;
  }
  absl::StatusOr<ListedRuns> ListRuns() override {
    WriterLock lock(maps_.mutex);
    ListedRuns listed;
    for (const auto& [id, run] : maps_.runs) listed.runs.push_back(run);
    return listed;
  }
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    WriterLock lock(maps_.mutex);
    std::erase_if(maps_.sequences, [&](const auto& entry) {
      const SequenceIdentity& sequence = entry.first;
      return sequence.run_id == run_id && sequence.incarnation >= first &&
             sequence.incarnation < last;
    });
    std::erase_if(maps_.steps, [&](const auto& entry) {
      const auto& [server, id, incarnation] = entry.first;
      return id == run_id && incarnation >= first && incarnation < last;
    });
    return absl::OkStatus();
  }

  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot) override {
    WriterLock lock(maps_.mutex);
    auto& steps = maps_.steps[{server_, run_id, incarnation}];
    for (const auto& [slot, payload] : by_slot) steps[slot] = payload;
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation) override {
    WriterLock lock(maps_.mutex);
    std::vector<absl::StatusOr<std::string>> payloads;
    for (const auto& [slot, payload] : maps_.steps[{server_, run_id, incarnation}]) {
      payloads.emplace_back(payload);
    }
    return payloads;
  }

 private:
  static uint32_t EndOf(const StoredPart& block) { return block.position + block.count; }
  static std::map<uint32_t, StoredPart>::iterator LastBefore(StoreMaps::Sequence& sequence,
                                                             uint32_t end) {
    const auto behind = sequence.blocks.lower_bound(end);
    return behind == sequence.blocks.begin() ? sequence.blocks.end() : std::prev(behind);
  }

  StoreMaps& maps_;
  const std::string server_;
  size_t heard_ = 0;  // of the news; guarded by the maps' mutex
};

}  // namespace sis
