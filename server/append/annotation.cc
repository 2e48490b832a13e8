#include "server/append/annotation.h"

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 10;
constexpr size_t kMaxGroupBytes = 256;

absl::Status CheckSize(std::string_view field, const std::string& text, size_t most) {
  if (text.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("seal.annotation.", std::string(field), ": ",
                                                 text.size(), " bytes, more than ", most));
}

}  // namespace

absl::Status CheckAnnotation(const v1::Annotation& annotation) {
  absl::Status status = CheckSize("prompt", annotation.prompt(), kMaxTextBytes);
  status.Update(CheckSize("text", annotation.text(), kMaxTextBytes));
  status.Update(CheckSize("group", annotation.group(), kMaxGroupBytes));
  if (annotation.has_reward() && !std::isfinite(annotation.reward())) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("seal.annotation.reward: ", annotation.reward(), " is not finite")));
  }
  return status;
}

std::string Annotated(const std::string& serialised, const v1::Annotation& added) {
  v1::Annotation annotation;
  annotation.ParseFromString(serialised);
  annotation.MergeFrom(added);
  return annotation.SerializeAsString();
}

}  // namespace sis
