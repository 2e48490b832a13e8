// Annotations that a seal may add to its sequence.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "sis/v1/sequence.pb.h"

namespace sis {

// Returns InvalidArgument, naming the field, if a text is too long or the reward is not finite.
absl::Status CheckAnnotation(const v1::Annotation& annotation);

// Returns the serialised v1::Annotation, with the fields that are set in `added` replaced.
std::string Annotated(const std::string& serialised, const v1::Annotation& added);

}  // namespace sis
