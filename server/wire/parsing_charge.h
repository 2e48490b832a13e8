// What is made of a message, charged before it is made.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/memory/byte_budget.h"

namespace sis {

// A message of few bytes may be made into many: an entry takes two on the wire and hundreds in
// memory. gRPC counts the former. One budget of the server is for the latter, of all messages at a
// time; whoever reads a message takes from it as it goes. For one thread at a time.
class ParsingCharge {
 public:
  // The budget must outlive the object.
  explicit ParsingCharge(ByteBudget& budget) : budget_(budget) {}
  ~ParsingCharge() { GiveBack(); }
  ParsingCharge(const ParsingCharge&) = delete;
  ParsingCharge& operator=(const ParsingCharge&) = delete;

  // Room for so many bytes more; false if there is none.
  [[nodiscard]] bool Take(int64_t bytes) {
    if (bytes > charged_ - used_) {
      // A little ahead, as the budget is everybody's.
      const int64_t lacking = bytes - (charged_ - used_);
      const int64_t ahead = std::max(lacking, kStep);
      if (budget_.TryCharge(ahead)) {
        charged_ += ahead;
      } else if (budget_.TryCharge(lacking)) {
        charged_ += lacking;
      } else {
        return false;
      }
    }
    used_ += bytes;
    return true;
  }
  // Once what was made has gone.
  void GiveBack() {
    budget_.Refund(charged_);
    charged_ = used_ = 0;
  }

  // Why a message is refused for which there is no room.
  absl::Status Refusal() const {
    return absl::ResourceExhaustedError(
        absl::StrCat("message: what it is made into takes more than is free now, of ",
                     budget_.limit(), " bytes for all messages at a time: send less at once"));
  }

 private:
  static constexpr int64_t kStep = int64_t{16} << 10;

  ByteBudget& budget_;
  int64_t charged_ = 0;
  int64_t used_ = 0;
};

}  // namespace sis
