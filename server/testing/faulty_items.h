// A database of a test that can be made to fail.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/items/item_store.h"

namespace sis {

enum class Fault {
  kNone,
  kDown,         // nothing is answered, and nothing done
  kFull,         // nothing is written
  kAnswersLost,  // to Add, which does what it should
};

// Does what `items` does while there is no fault. A process is killed, as far as the items can
// tell, from the moment on at which they are down.
class FaultyItems final : public ItemStore {
 public:
  FaultyItems(std::unique_ptr<ItemStore> items, const std::atomic<Fault>& fault)
      : items_(std::move(items)), fault_(fault) {}

  absl::Status Add(std::span<const Item> items) override {
    if (absl::Status status = CanWrite(); !status.ok()) return status;
    const absl::Status status = items_->Add(items);
    return fault_ == Fault::kAnswersLost ? NoAnswer() : status;
  }
  absl::Status Put(std::span<const Item> items) override {
    const absl::Status status = CanWrite();
    return status.ok() ? items_->Put(items) : status;
  }
  std::vector<absl::StatusOr<std::string>> Get(std::span<const std::string> keys) override {
    if (fault_ != Fault::kDown) return items_->Get(keys);
    return std::vector<absl::StatusOr<std::string>>(keys.size(), NoAnswer());
  }
  absl::StatusOr<size_t> Remove(std::span<const std::string> keys) override {
    if (absl::Status status = CanWrite(); !status.ok()) return status;
    return items_->Remove(keys);
  }
  absl::Status RemoveRange(const std::string& first, const std::string& last) override {
    const absl::Status status = CanWrite();
    return status.ok() ? items_->RemoveRange(first, last) : status;
  }
  absl::Status Scan(
      const std::string& first,
      const std::function<std::string(std::string_view, std::string_view)>& visit) override {
    return fault_ == Fault::kDown ? NoAnswer() : items_->Scan(first, visit);
  }

 private:
  static absl::Status NoAnswer() { return absl::UnavailableError("no answer"); }
  absl::Status CanWrite() const {
    if (fault_ == Fault::kDown) return NoAnswer();
    return fault_ == Fault::kFull ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  }

  const std::unique_ptr<ItemStore> items_;
  const std::atomic<Fault>& fault_;
};

}  // namespace sis
