// Contents of the files of a corpus.
#pragma once

#include <string>
#include <vector>

namespace sis {

// The file itself; of a file NAME.base64 its lines, decoded: many small inputs, as tools/fuzz
// --keep writes them. Ends the program with 2 if the file can't be read, or is no such file.
std::vector<std::string> ReadInputs(const std::string& path);

}  // namespace sis
