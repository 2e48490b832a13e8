// What one version has stored, kept for the versions after it, and what is to be read of it.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace sis {

// Values by their keys.
using StoredItems = std::map<std::string, std::string>;

// What this version stores: a run of each encoding, with whole forms and logs of sequences that are
// sealed, being written, of a second attempt and released; one whose sets end at their mass, with
// columns, an annotation and a history; and the record of a deleted run.
StoredItems MakeItems();

// An item a line: key and value in base64.
std::string FileOf(const StoredItems& items);
// InvalidArgument says what is no base64.
absl::StatusOr<StoredItems> ItemsOfFile(const std::string& file);

// All that this version reads of the items, as lines of text, log-probs by their bits. Versions to
// come may not say it in another way, as files hold it.
std::string Describe(StoredItems items);
// The lines of it that the run without rounding has, made of what was appended.
std::string DescribeAppended();
// The same of the values of columns.
std::string DescribeAppendedColumns();

}  // namespace sis
