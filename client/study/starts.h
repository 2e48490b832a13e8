// The models that runs start from, each warmed up once, by whichever thread needs it first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/study/warm_up.h"

namespace sis::study {

// Thread-safe.
class Starts {
 public:
  std::shared_ptr<const std::vector<float>> Get(const std::string& name,
                                                const StartSettings& settings, uint64_t seed) {
    std::shared_ptr<Slot> slot;
    {
      const std::lock_guard lock(mutex_);
      std::shared_ptr<Slot>& there = slots_[{seed, name}];
      if (there == nullptr) there = std::make_shared<Slot>();
      slot = there;
      // Runs come seed after seed: what is two seeds old isn't asked for again.
      while (slots_.begin()->first.first + 2 <= seed) slots_.erase(slots_.begin());
    }
    std::call_once(slot->once, [&] {
      slot->parameters = std::make_shared<const std::vector<float>>(WarmUp(settings, seed));
    });
    return slot->parameters;
  }

 private:
  struct Slot {
    std::once_flag once;
    std::shared_ptr<const std::vector<float>> parameters;
  };

  std::mutex mutex_;
  std::map<std::pair<uint64_t, std::string>, std::shared_ptr<Slot>> slots_;
};

}  // namespace sis::study
