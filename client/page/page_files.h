// The page's files, inside the program.
#pragma once

#include <span>

#include "absl/strings/string_view.h"

namespace sis {

struct PageFile {
  absl::string_view name;  // as the page asks for it
  absl::string_view bytes;
  absl::string_view digest;  // hexadecimal; different bytes have another
};

std::span<const PageFile> PageFiles();

}  // namespace sis
