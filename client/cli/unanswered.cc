#include "client/cli/unanswered.h"

#include <string>
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

}  // namespace sis
