// Settings by name, as they stand in cells.txt: "task=addition digits=3".
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/study/training.h"
#include "client/study/warm_up.h"

namespace sis::study {

// Words that aren't there leave what is set. InvalidArgument names the word that is wrong.
absl::Status Set(const std::string& words, StartSettings& start);
// Of a cell with such a start, and its arm: arm=grpo, or with a correction, a weight for the
// mismatch or without sets: arm=grpo+sampled, arm=grpo+tis2.
absl::Status Set(const std::string& words, const StartSettings& start, CellSettings& cell);

}  // namespace sis::study
