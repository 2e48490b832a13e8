// sis_server: the service as a program.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "server/main/check_options.h"
#include "server/main/configuration.h"
#include "server/main/descriptor_limit.h"
#include "server/main/flags.h"
#include "server/main/heap.h"
#include "server/main/server.h"

ABSL_FLAG(std::string, config, "",
          "file of flags, a line `name = value` each; the environment (SIS_SERVER_NAME) and the "
          "command line override it (docs/operations.md)");
ABSL_FLAG(
    bool, check, false,
    "only says what the configuration is, and whether it and the files that it names make sense");
ABSL_FLAG(
    int, parent, 0,
    "id of the process that starts it, with which it ends as with SIGTERM, whatever ends that; "
    "0: it outlives it");

namespace {

// Whether there is a process that it ends with, and it is gone. No signal and no pipe says that as
// surely: PR_SET_PDEATHSIG is about threads, and a child of that process holds its pipes open.
bool ParentIsGone() {
  const int parent = absl::GetFlag(FLAGS_parent);
  return parent != 0 && getppid() != parent;
}

std::string FlagProblem(absl::string_view flag) {
  if (flag != "parent") return sis::FlagProblem(flag);
  return ParentIsGone() ? " is not the process that started it" : "";
}

// The exit status of a server that doesn't start, once it has said why.
int Refuse(const absl::Status& status) {
  std::cerr << "sis_server: " << status.message() << std::endl;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("The SIS ratio service. See README.md.");
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::StrContains(file, "server/main/");
  };
  absl::SetFlagsUsageConfig(usage);
  const absl::StatusOr<sis::Configuration> configuration =
      sis::Configuration::Load(argc, argv, FlagProblem);
  if (!configuration.ok()) return Refuse(configuration.status());
  const sis::ServerOptions options = sis::OptionsFromFlags();
  std::cout << configuration->Describe() << std::flush;
  if (absl::GetFlag(FLAGS_check)) {
    absl::Status status = sis::CheckOptions(options);
    if (status.ok()) status = sis::CheckFiles(options);
    return status.ok() ? 0 : Refuse(status);
  }
  sis::RaiseDescriptorLimit();
  sis::ConfigureHeap();
  // Who read what it says may be gone before it.
  signal(SIGPIPE, SIG_IGN);

  // Blocked before any thread starts, so that all threads inherit it and only the wait below sees
  // them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const absl::StatusOr<std::unique_ptr<sis::Server>> server = sis::Server::Start(options);
  if (!server.ok()) return Refuse(server.status());
  std::cout << "backend: " << (*server)->backend_name() << " (" << (*server)->backend_reason()
            << ")\n";
  if (!(*server)->device_cache().empty()) {
    std::cout << "device cache: " << (*server)->device_cache() << '\n';
  }
  std::cout << "store: " << (*server)->store_description() << '\n'
            << "grpc: " << (*server)->grpc_address() << '\n';
  if (const std::string admin = (*server)->admin_address(); !admin.empty()) {
    std::cout << "admin: " << admin << '\n';
  }
  std::cout << "ready" << std::endl;

  constexpr timespec kSecond{.tv_sec = 1, .tv_nsec = 0};
  for (int seconds = 1; sigtimedwait(&signals, nullptr, &kSecond) < 0 && !ParentIsGone();
       ++seconds) {
    // Without this, memory would stay what it was at the most crowded moment so far.
    if (seconds % 30 == 0) sis::GiveBackHeap();
  }
  std::cout << "shutting down" << std::endl;
  (*server)->Shutdown(absl::GetFlag(FLAGS_shutdown_grace));
  return 0;
}
