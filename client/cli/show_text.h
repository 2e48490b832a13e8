// What InspectRun and InspectSequence answer, as text for a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/terminal.h"
#include "client/page/token_texts.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Tokens without a text are shown by their ids alone.
std::string RunAsText(const v1::InspectRunResponse& run, const TokenTexts& texts,
                      const Terminal& terminal);
// A line per position; positions without a decision together in one.
std::string SequenceAsText(const v1::InspectSequenceResponse& sequence, const TokenTexts& texts);
// One position, with the record beside the current policy's values. OutOfRange if it is not among
// those that are kept.
absl::StatusOr<std::string> PositionAsText(const v1::InspectSequenceResponse& sequence,
                                           uint32_t position, const TokenTexts& texts);

}  // namespace sis
