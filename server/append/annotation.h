// Annotations that a seal may add to its sequence.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "sis/v1/sequence.pb.h"

namespace sis {

// InvalidArgument, naming the field, for texts that are too long and a reward that is no number.
absl::Status CheckAnnotation(const v1::Annotation& annotation);

// A serialised v1::Annotation with the fields that are set in `added` in the place of its own.
std::string Annotated(const std::string& serialised, const v1::Annotation& added);

}  // namespace sis
