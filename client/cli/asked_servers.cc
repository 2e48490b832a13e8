#include "client/cli/asked_servers.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sis {

absl::Status FromEveryServer(Client& client, const absl::Status& shown) {
  // What isn't there may be where nobody answers.
  if (!shown.ok() && !absl::IsNotFound(shown)) return shown;
  const auto servers = client.GetServers();
  std::vector<std::string> silent;
  for (size_t i = 0; i < servers.size(); ++i) {
    const absl::Status& status = servers[i].status();
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) continue;
    silent.push_back(
        absl::StrCat("server ", i + 1, " of ", servers.size(),
                     " gives no answer, and what it holds is not shown: ", status.message()));
  }
  if (silent.empty()) return shown;
  if (!shown.ok()) silent.insert(silent.begin(), std::string(shown.message()));
  return absl::UnavailableError(absl::StrJoin(silent, "; "));
}

absl::StatusOr<v1::Run> FindRun(Client& client, const std::string& run_id) {
  const absl::StatusOr<v1::ListRunsResponse> response = client.ListRuns();
  if (!response.ok()) return response.status();
  const auto& runs = response->runs();
  const auto run = std::ranges::find(runs, run_id, &v1::Run::run_id);
  if (run == runs.end()) return absl::NotFoundError(absl::StrCat("run '", run_id, "' is unknown"));
  return *run;
}

}  // namespace sis
