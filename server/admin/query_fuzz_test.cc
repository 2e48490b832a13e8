// Any bytes as the query of a URL: a request that a query gives again, or InvalidArgument. Any
// bytes as a value come through, encoded.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/admin/api.h"
#include "server/admin/query.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

std::string Encoded(absl::string_view text) {
  std::string encoded;
  for (const unsigned char c : text) absl::StrAppendFormat(&encoded, "%%%02X", c);
  return encoded;
}

void RequireRefusal(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status));
  // The message holds what was no number.
  Require(nlohmann::json::accept(sis::ErrorAsJson(status)));
}

void CheckStep(absl::string_view query) {
  sis::v1::GetStepRequest request, again;
  if (absl::Status status = sis::ReadQuery(query, request); !status.ok()) {
    return RequireRefusal(status);
  }
  Require(request.run().run_id() == sis::QueryValue(query, "run_id"));
  const std::string written =
      absl::StrCat("draw=", request.draw(), "&run_id=", Encoded(request.run().run_id()));
  Require(sis::ReadQuery(written, again).ok());
  Require(again.draw() == request.draw() && again.run().run_id() == request.run().run_id());
}

void CheckSequence(absl::string_view query) {
  sis::v1::InspectSequenceRequest request, again;
  if (absl::Status status = sis::ReadQuery(query, request); !status.ok()) {
    return RequireRefusal(status);
  }
  Require(request.run().run_id() == sis::QueryValue(query, "run_id"));
  Require(request.sequence().id() == sis::QueryValue(query, "sequence"));
  const std::string written = absl::StrCat("sequence=", Encoded(request.sequence().id()),
                                           "&run_id=", Encoded(request.run().run_id()),
                                           "&attempt=", request.sequence().attempt());
  Require(sis::ReadQuery(written, again).ok());
  Require(again.sequence().id() == request.sequence().id());
  Require(again.sequence().attempt() == request.sequence().attempt());
  Require(again.run().run_id() == request.run().run_id());
}

void CheckRuns(absl::string_view query) {
  sis::v1::ListRunsRequest request, again;
  if (absl::Status status = sis::ReadQuery(query, request); !status.ok()) {
    return RequireRefusal(status);
  }
  Require(request.containing() == sis::QueryValue(query, "containing"));
  const std::string written =
      absl::StrCat("offset=", request.offset(), "&order=", sis::v1::RunOrder_Name(request.order()),
                   "&limit=", request.limit(), "&containing=", Encoded(request.containing()));
  Require(sis::ReadQuery(written, again).ok());
  Require(again.offset() == request.offset() && again.order() == request.order());
  Require(again.limit() == request.limit() && again.containing() == request.containing());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const std::string input(reinterpret_cast<const char*>(data), size);
  CheckStep(input);
  CheckSequence(input);
  CheckRuns(input);
  Require(sis::QueryValue(absl::StrCat("draw=5&run_id=", Encoded(input)), "run_id") == input);
  return 0;
}
