// Which replica has a sequence (docs/placement.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sis {

// What the replica `name` bids for a sequence; the largest has it.
uint64_t PlacementScore(std::string_view name, std::string_view run_id,
                        std::string_view sequence_id);

class Placement {
 public:
  // At least one name, each once.
  explicit Placement(const std::vector<std::string>& names);

  // The index of the name in the list that was given.
  size_t Replica(std::string_view run_id, std::string_view sequence_id) const;

 private:
  struct Candidate {
    uint64_t hash;
    size_t index;
  };
  std::vector<Candidate> candidates_;  // by name, as the first of equal scores wins
};

}  // namespace sis
