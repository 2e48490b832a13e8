// Where recordings differ: by sequence, and by position over all sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/compare/part.h"

namespace sis {

struct Profile {
  struct Row {
    uint64_t first;  // a sequence, or the first position of a stretch
    uint64_t last;   // the same sequence, or the last position
    size_t positions;
    double d;      // nats per token; NaN without a ratio
    double lists;  // mean total variation of the lists; NaN without lists
  };
  std::vector<Row> sequences;
  // Stretches whose lengths double, from 4 positions on, as sequences do not all reach far.
  std::vector<Row> positions;
};

Profile ProfileOf(const Part& part);

}  // namespace sis
