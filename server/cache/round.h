// Whom a run is to ask about next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <list>
#include <vector>

#include "server/cache/member.h"

namespace sis {

// The members of a run, in turns. What a call costs doesn't depend on how many there are. Not
// thread-safe.
class Round {
 public:
  // Its turn comes after all others'.
  void Add(Member& member) {
    members_.push_back(&member);
    member.in_round = std::prev(members_.end());
  }
  void Remove(Member& member) { members_.erase(member.in_round); }
  // The next ones, each once, at most so many.
  std::vector<Member*> Next(size_t most) {
    std::vector<Member*> next;
    for (size_t n = std::min(most, members_.size()); n > 0; --n) {
      next.push_back(members_.front());
      members_.splice(members_.end(), members_, members_.begin());
    }
    return next;
  }

 private:
  std::list<Member*> members_;
};

}  // namespace sis
