// sisctl: talks to a SIS ratio service, or to one inside this process.
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "client/api/client.h"
#include "client/cli/command_line.h"
#include "client/cli/subcommand.h"
#include "server/main/server.h"

ABSL_FLAG(
    std::vector<std::string>, server, {"localhost:50051"},
    "Host and port of the service; of its replicas, with commas, as workers and trainers name "
    "them.");
ABSL_FLAG(bool, embedded, false, "Start a service inside this process instead.");

namespace sis {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

int Main(std::span<const absl::string_view> words) {
  const Subcommand* const subcommands[] = {&kRunsList, &kRunsGet, &kRunsCreate, &kStep, &kReplay};
  const absl::string_view global_flags[] = {"server", "embedded"};
  const absl::StatusOr<CommandLine> command_line =
      ParseCommandLine(words, subcommands, global_flags);
  if (!command_line.ok()) {
    std::cerr << "sisctl: " << command_line.status().message() << "\nsee sisctl --help\n";
    return kWrongUsage;
  }
  if (command_line->help) {
    std::cout << Help(command_line->subcommand, subcommands, global_flags);
    return kDone;
  }

  const auto failed = [](const absl::Status& status) {
    std::cerr << "sisctl: " << status.message() << " (" << absl::StatusCodeToString(status.code())
              << ")\n";
    return kFailed;
  };
  std::unique_ptr<Server> server;
  std::unique_ptr<Client> client;
  if (absl::GetFlag(FLAGS_embedded)) {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.metrics = "";
    options.cache_bytes = 256 << 20;
    absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(options);
    if (!started.ok()) return failed(started.status());
    server = *std::move(started);
    client = std::make_unique<Client>(server->InProcessChannel());
  } else {
    absl::StatusOr<std::unique_ptr<Client>> connected =
        Client::Connect(absl::GetFlag(FLAGS_server), {.connect_timeout = absl::Seconds(3)});
    if (!connected.ok()) return failed(connected.status());
    client = *std::move(connected);
  }
  const absl::Status status = command_line->subcommand->run(*client, command_line->arguments);
  if (!status.ok()) return failed(status);
  return std::cout.flush() ? kDone : kFailed;
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  const std::vector<absl::string_view> words(argv + 1, argv + argc);
  return sis::Main(words);
}
