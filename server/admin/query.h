// What requests take from the query of a URL, as in run_id=r&draw=5.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sis {

// With every %XX as the byte that it stands for; what only begins so is left as it is.
std::string PercentDecoded(absl::string_view text);

// The value of a name in a query, decoded; empty if it isn't there.
std::string QueryValue(absl::string_view query, absl::string_view name);

// Fills in the fields of a request that the query names as the API does. So it does those of `run`;
// of a `sequence`, or of what a list comes `after`, that name is the id, beside `attempt`. An enum
// has its name, as in order=WORST_FIRST. InvalidArgument for a value that is no number, or no name.
absl::Status ReadQuery(absl::string_view query, google::protobuf::Message& request);

}  // namespace sis
