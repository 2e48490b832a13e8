// Where recordings differ: by sequence, and by position over all sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/compare/compared_positions.h"
#include "client/compare/moments.h"

namespace sis {

// Of some positions.
struct DifferenceSums {
  size_t positions = 0;
  Moments d;      // nats per token, of those with a ratio
  Moments lists;  // total variation of the lists, of those where both files have one

  void Add(const ComparedPosition& at);
};

DifferenceSums DifferencesOf(std::span<const ComparedPosition> positions);

struct Profile {
  struct Row {
    uint64_t first;  // a sequence, or the first position of a stretch
    uint64_t last;   // the same sequence, or the last position
    DifferenceSums differences;
  };
  std::vector<Row> sequences;
  // Stretches whose lengths double, from 4 positions on, as sequences do not all reach far.
  std::vector<Row> positions;
};

Profile ProfileOf(const Part& part);

}  // namespace sis
