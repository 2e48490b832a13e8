#include "client/cli/unanswered.h"

#include "absl/strings/str_cat.h"

namespace sis {

absl::Status FromEveryServer(Client& client, const absl::Status& shown) {
  if (!shown.ok()) return shown;
  const auto servers = client.GetServers();
  for (size_t i = 0; i < servers.size(); ++i) {
    const absl::Status& status = servers[i].status();
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) continue;
    return absl::UnavailableError(
        absl::StrCat("server ", i + 1, " of ", servers.size(),
                     " gives no answer, and what it holds is not shown: ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace sis
