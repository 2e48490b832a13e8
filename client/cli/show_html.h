// The microscope in one file that needs nothing else: data, style and program.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/page/token_texts.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

struct InspectedRun {
  std::string run_id;
  // Unset: only one sequence is shown.
  std::optional<v1::InspectRunResponse> overview;
  std::vector<std::pair<v1::SequenceRef, v1::InspectSequenceResponse>> sequences;
};

// An HTML page. Of `texts` it holds those that the sequences need.
std::string RunAsHtml(const InspectedRun& run, const TokenTexts& texts);

}  // namespace sis
