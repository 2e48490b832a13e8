#include "client/cli/find_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<v1::Run> FindRun(Client& client, const std::string& run_id) {
  const absl::StatusOr<v1::ListRunsResponse> response = client.ListRuns();
  if (!response.ok()) return response.status();
  const auto& runs = response->runs();
  const auto run = std::ranges::find(runs, run_id, &v1::Run::run_id);
  if (run == runs.end()) return absl::NotFoundError(absl::StrCat("run '", run_id, "' is unknown"));
  return *run;
}

}  // namespace sis
