// Servers over one store that fails now and then, and what one of them holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/records/record_digest.h"
#include "server/store/sequence_store.h"
#include "server/testing/faulty_items.h"
#include "server/testing/items_in_memory.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"

namespace sis {

inline constexpr int kSlots = 2;

// What several replicas see.
struct Fleet : ItemMap {
  bool shared = true;

  int64_t gets ABSL_GUARDED_BY(mutex) = 0;
  absl::Duration slowness;  // of every get
  std::atomic<Fault> fault = Fault::kNone;
};

// Can list nothing, as memcached can't.
class FleetItems final : public ItemsInMemory {
 public:
  explicit FleetItems(Fleet& fleet) : ItemsInMemory(fleet), fleet_(fleet) {}
  bool forgets() const override { return fleet_.shared; }
  bool shared() const override { return fleet_.shared; }

  std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) override {
    absl::SleepFor(fleet_.slowness);
    {
      WriterLock lock(fleet_.mutex);
      fleet_.gets += static_cast<int64_t>(keys.size());
    }
    return ItemsInMemory::Get(keys);
  }
  absl::Status RemoveRange(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::Status Scan(
      const std::string&,
      const std::function<std::string(std::string_view, std::string_view)>&) override {
    return absl::OkStatus();
  }

 private:
  Fleet& fleet_;
};

inline std::unique_ptr<SequenceStore> StoreOf(Fleet& fleet) {
  return std::make_unique<SequenceStore>(
      std::make_unique<FaultyItems>(std::make_unique<FleetItems>(fleet), fleet.fault));
}

// One server's cache over the fleet.
struct FleetReplica : Replica {
  explicit FleetReplica(Fleet& fleet, const v1::RunConfig& config = LosslessConfig(kSlots))
      : Replica(StoreOf(fleet), config) {}
};

inline uint64_t DigestOf(const Records& records, uint32_t row, uint32_t position) {
  const RecordView view = records.View(row, 1);
  return PositionDigest(position, view.sampled_ids[0], view.sampled_log_probs[0], view.ids,
                        view.log_probs);
}

inline uint64_t DigestAt(const Run::Found& found, uint32_t first, uint32_t count) {
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (sequence == nullptr) return 0;
  const Sequence::Reader reader(**sequence);
  return reader.Digest(first, count);
}

inline absl::StatusCode CodeOf(const v1::Ack& ack) {
  return static_cast<absl::StatusCode>(ack.code());
}

inline const Run::Found kGone(MissingReason::kReleased);

}  // namespace sis
