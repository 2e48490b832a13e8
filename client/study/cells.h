// The design of the study, read from a file: which runs there are, and which comparisons count.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/study/training.h"
#include "client/study/warm_up.h"

namespace sis::study {

struct Cell {
  std::string name;
  std::string start;
  CellSettings settings;
  std::vector<std::string> arms;
  uint64_t seeds;  // it runs on the first so many
};

struct Design {
  uint64_t first_seed;
  std::map<std::string, StartSettings> starts;
  std::vector<Cell> cells;
};

// One run of a design: arm, cell and seed.
struct RunName {
  const Cell* cell;
  std::string arm;
  uint64_t seed;

  std::string text() const { return cell->name + " " + arm + " " + std::to_string(seed); }
};

// The lines of such a file are described in cells.txt. InvalidArgument names line and word.
absl::StatusOr<Design> ParseDesign(std::string_view text);

// All of them, seed after seed, so that what is there at any time is a design with fewer seeds.
std::vector<RunName> RunsOf(const Design& design);

}  // namespace sis::study
