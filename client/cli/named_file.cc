#include "client/cli/named_file.h"

#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<std::string> ReadInput(const std::string& name) {
  std::ostringstream text;
  std::ifstream file;
  const bool standard = name == "-";
  if (!standard) file.open(name, std::ios::binary);
  text << (standard ? std::cin.rdbuf() : file.rdbuf());
  // Fails if there is nothing to read, as in a directory.
  if ((!standard && !file.is_open()) || text.fail()) {
    return absl::NotFoundError(
        absl::StrCat(standard ? "standard input" : name, ": can't be read, or is empty"));
  }
  return std::move(text).str();
}

absl::Status WriteFile(const std::string& name, const std::string& contents) {
  std::ofstream file(name, std::ios::binary);
  file << contents;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(name, ": can't be written"));
}

}  // namespace sis
