// sis_server: the service as a program.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/backend_choice.h"
#include "kernels/block/block.h"
#include "proto/version.h"
#include "server/auth/roles.h"
#include "server/main/check_options.h"
#include "server/main/probe.h"
#include "server/main/server.h"

ABSL_FLAG(bool, check, false,
          "only prints the flags, and checks them and the files that they name");
ABSL_FLAG(
    std::string, probe, "",
    "asks the server at this gRPC address, host:port or unix:path, whether it serves, instead "
    "of being one; the exit status is 0 if it does");
ABSL_FLAG(std::string, probe_ca, "",
          "with --probe over TLS, file in PEM: who signs the server's certificate; "
          "--tls_certificate and --tls_key are shown to a server that wants a certificate");
ABSL_FLAG(
    int, parent, 0,
    "id of the process that starts it, with which it ends as with SIGTERM, whatever ends that; "
    "0: it outlives it");
ABSL_FLAG(std::string, listen, sis::ServerOptions().listen,
          "gRPC addresses, host:port or unix:path, commas between; port 0 picks a free one");
ABSL_FLAG(std::string, admin, sis::ServerOptions().admin,
          "HTTP address of /metrics, /livez and /readyz, host:port; empty for none");
ABSL_FLAG(int64_t, cache_bytes, sis::ServerOptions().cache_bytes,
          "maximum memory of recorded sequences, in bytes");
ABSL_FLAG(int64_t, max_message_bytes, sis::ServerOptions().max_message_bytes,
          "largest gRPC message");
ABSL_FLAG(int, evaluate_threads, static_cast<int>(std::thread::hardware_concurrency()),
          "threads that evaluate");
ABSL_FLAG(std::string, backend, "auto",
          "what evaluates: auto, cpu or cuda; without a usable CUDA device all mean cpu");
ABSL_FLAG(
    int64_t, device_cache_bytes, -1,
    "with CUDA, bytes on the device for copies of recorded blocks, taken at start; 0 for none, -1 "
    "for a quarter of what is free, at most --cache_bytes");
ABSL_FLAG(std::string, store, sis::ServerOptions().store,
          "store of sequences beyond this process: memory (nothing), rocksdb:DIR[?sync=1], or "
          "redis[s]://HOST[:PORT], which servers share (docs/operations.md)");
ABSL_FLAG(absl::Duration, shutdown_grace, absl::Seconds(10),
          "how long calls in flight may take to finish after SIGTERM");
ABSL_FLAG(absl::Duration, default_deadline, sis::ServerOptions().default_deadline,
          "how long an answer may take where the client sets no deadline; then the call is "
          "DEADLINE_EXCEEDED; inf: for ever");
ABSL_FLAG(int, max_top_k, sis::Limits().max_top_k, "largest K of a run, at most 254");
ABSL_FLAG(int64_t, max_positions, sis::Limits().max_positions, "longest sequence");
ABSL_FLAG(int64_t, max_evaluate_positions, sis::Limits().max_evaluate_positions,
          "most positions in one Evaluate or FetchTopK");
ABSL_FLAG(int, max_runs, sis::Limits().max_runs, "most runs");
ABSL_FLAG(int, max_runs_per_owner, sis::Limits().max_runs_per_owner,
          "most runs of one owner, where callers say who they are");
ABSL_FLAG(int, metric_runs, sis::Limits().metric_runs,
          "runs that have metrics of their own; those of the rest are under run=other");
ABSL_FLAG(absl::Duration, run_idle_expiry, sis::ServerOptions().run_idle_expiry,
          "a run that no call names for so long is deleted, 24h for instance; inf: never");
ABSL_FLAG(absl::Duration, reader_absence, sis::Limits().reader_absence,
          "time after which sequences that nobody has read may be evicted where room is short, if "
          "nothing of their run was fetched or evaluated in it");
ABSL_FLAG(int64_t, inspected_bytes, sis::Limits().inspected_bytes,
          "for the last evaluated values of a sample of sequences, which sisctl and the page "
          "open; one run takes at most an eighth, one sequence half of that; 0: none are kept");
ABSL_FLAG(std::string, tls_certificate, "",
          "file in PEM: the certificate that TCP connections are served with over TLS, then those "
          "between it and its root; read again when it changes (docs/security.md)");
ABSL_FLAG(std::string, tls_key, "", "file in PEM: the private key of --tls_certificate");
ABSL_FLAG(std::string, tls_client_ca, "",
          "file in PEM: who signs certificates of clients; a client needs one then, or a token");
ABSL_FLAG(std::string, proxy_certificate, "",
          "file in PEM: the certificate of a proxy in front, which takes the calls in place of TLS "
          "here; only for the metric that says when it ends");
ABSL_FLAG(std::string, identities, "",
          "file of tokens and certificates, with the identity and role of each; read again when it "
          "changes; every call needs one of them then (docs/security.md)");
ABSL_FLAG(std::string, certificate_role, "",
          "role of clients with a certificate that --identities does not name: viewer, worker, "
          "trainer or admin; empty: they are refused");
ABSL_FLAG(bool, insecure, false,
          "serve addresses that other machines can reach without TLS or without asking who calls, "
          "since something else protects them");
ABSL_FLAG(absl::Duration, reload_interval, sis::AuthOptions().reload_interval,
          "how often certificates, keys and identities are looked at for changes, at least 1s");
ABSL_FLAG(int, max_streams_per_connection, sis::ConnectionLimits().max_streams_per_connection,
          "most calls of one connection at a time; others wait in the client");
ABSL_FLAG(int64_t, grpc_memory_bytes, sis::ConnectionLimits().grpc_memory_bytes,
          "for connections, and messages that come in or are being answered; beyond it idle "
          "connections are closed and calls are ended; at least --max_message_bytes");
ABSL_FLAG(absl::Duration, max_connection_age, sis::ConnectionLimits().max_connection_age,
          "a client has to connect anew after so long, 1h for instance; its calls go on to their "
          "end; inf: never");
ABSL_FLAG(bool, reflection, false,
          "serve grpc.reflection, for grpcurl and the like, to everybody who can connect");

// Options that jemalloc reads before main: a background thread returns free memory to the system,
// also while no call comes. After a burst of 300 MB of messages, less than 60 MB remained after
// 15 s; without the thread 169 MB, and with glibc's malloc 269 MB.
extern "C" {
const char* malloc_conf = "background_thread:true";
}

namespace sis {
namespace {

// Whether there is a process that it ends with, and it is gone. No signal and no pipe says that as
// surely: PR_SET_PDEATHSIG is about threads, and a child of that process holds its pipes open.
bool ParentIsGone() {
  const int parent = absl::GetFlag(FLAGS_parent);
  return parent != 0 && getppid() != parent;
}

// Sixteen blocks.
constexpr int64_t kLeastCacheBytes = 16 * int64_t{kMaxBlockBytes};
constexpr int kMostThreads = 4096;

std::string Text(int64_t number) { return absl::StrCat(number); }
std::string Text(absl::Duration duration) { return absl::FormatDuration(duration); }

AuthOptions SecurityFromFlags() {
  return {.tls_certificate = absl::GetFlag(FLAGS_tls_certificate),
          .tls_key = absl::GetFlag(FLAGS_tls_key),
          .tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca),
          .proxy_certificate = absl::GetFlag(FLAGS_proxy_certificate),
          .identities = absl::GetFlag(FLAGS_identities),
          .certificate_role = ParseRole(absl::GetFlag(FLAGS_certificate_role)),
          .insecure = absl::GetFlag(FLAGS_insecure),
          .reload_interval = absl::GetFlag(FLAGS_reload_interval)};
}

ConnectionLimits ConnectionLimitsFromFlags() {
  return {.max_streams_per_connection = absl::GetFlag(FLAGS_max_streams_per_connection),
          .grpc_memory_bytes = absl::GetFlag(FLAGS_grpc_memory_bytes),
          .max_connection_age = absl::GetFlag(FLAGS_max_connection_age),
          .reflection = absl::GetFlag(FLAGS_reflection)};
}

// Returns what is wrong with the value of a flag, to follow "--flag=value". Empty if nothing is.
std::string FlagProblem(absl::string_view flag) {
  if (flag == "parent") return ParentIsGone() ? " is not the process that started it" : "";
  if (flag == "listen") return ListenProblem(absl::GetFlag(FLAGS_listen));
  if (flag == "admin") return AdminProblem(absl::GetFlag(FLAGS_admin));
  if (flag == "store") return StoreProblem(absl::GetFlag(FLAGS_store));
  if (flag == "backend") {
    const bool known = ParseBackendKind(absl::GetFlag(FLAGS_backend)).has_value();
    return known ? "" : " is none of auto, cpu and cuda";
  }
  if (flag == "certificate_role") {
    const std::string role = absl::GetFlag(FLAGS_certificate_role);
    const bool known = role.empty() || ParseRole(role).has_value();
    return known ? "" : " is none of viewer, worker, trainer and admin";
  }
  std::string problem;
  const auto is_in = [&]<typename T>(const absl::Flag<T>& own, std::type_identity_t<T> least,
                                     std::type_identity_t<T> most) {
    if (absl::GetFlagReflectionHandle(own).Name() != flag) return;
    const T value = absl::GetFlag(own);
    if (value < least) problem = absl::StrCat(" is below ", Text(least));
    if (value > most) problem = absl::StrCat(" is above ", Text(most));
  };
  is_in(FLAGS_max_top_k, 1, kMaxBlockSlots);
  is_in(FLAGS_max_positions, 1, INT32_MAX);
  is_in(FLAGS_cache_bytes, kLeastCacheBytes, INT64_MAX);
  is_in(FLAGS_device_cache_bytes, -1, INT64_MAX);
  is_in(FLAGS_max_message_bytes, 1, INT32_MAX);
  is_in(FLAGS_evaluate_threads, 1, kMostThreads);
  is_in(FLAGS_max_evaluate_positions, 1, INT64_MAX);
  is_in(FLAGS_max_runs, 1, INT32_MAX);
  is_in(FLAGS_max_runs_per_owner, 1, INT32_MAX);
  is_in(FLAGS_metric_runs, 0, INT32_MAX);
  is_in(FLAGS_inspected_bytes, 0, INT64_MAX);
  is_in(FLAGS_max_streams_per_connection, 1, INT32_MAX);
  is_in(FLAGS_grpc_memory_bytes, 1, INT64_MAX);
  constexpr absl::Duration kEver = absl::InfiniteDuration();
  is_in(FLAGS_reader_absence, absl::ZeroDuration(), kEver);
  is_in(FLAGS_shutdown_grace, absl::ZeroDuration(), kEver);
  is_in(FLAGS_run_idle_expiry, absl::ZeroDuration(), kEver);
  is_in(FLAGS_default_deadline, absl::ZeroDuration(), kEver);
  is_in(FLAGS_max_connection_age, absl::Seconds(1), kEver);
  is_in(FLAGS_reload_interval, absl::Seconds(1), kEver);
  for (const auto* positive : {&FLAGS_run_idle_expiry, &FLAGS_default_deadline}) {
    if (absl::GetFlagReflectionHandle(*positive).Name() != flag) continue;
    if (absl::GetFlag(*positive) == absl::ZeroDuration()) problem = " is not above 0";
  }
  return problem;
}

ServerOptions OptionsFromFlags() {
  const int64_t device_cache_bytes = absl::GetFlag(FLAGS_device_cache_bytes);
  return {
      .listen = absl::GetFlag(FLAGS_listen),
      .admin = absl::GetFlag(FLAGS_admin),
      .cache_bytes = absl::GetFlag(FLAGS_cache_bytes),
      .max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes),
      .evaluate_threads = absl::GetFlag(FLAGS_evaluate_threads),
      .backend = *ParseBackendKind(absl::GetFlag(FLAGS_backend)),
      .device_cache_bytes =
          device_cache_bytes < 0 ? std::nullopt : std::optional(device_cache_bytes),
      .store = absl::GetFlag(FLAGS_store),
      .run_idle_expiry = absl::GetFlag(FLAGS_run_idle_expiry),
      .default_deadline = absl::GetFlag(FLAGS_default_deadline),
      .limits =
          {
              .max_top_k = absl::GetFlag(FLAGS_max_top_k),
              .max_positions = absl::GetFlag(FLAGS_max_positions),
              .max_evaluate_positions = absl::GetFlag(FLAGS_max_evaluate_positions),
              .max_runs = absl::GetFlag(FLAGS_max_runs),
              .max_runs_per_owner = absl::GetFlag(FLAGS_max_runs_per_owner),
              .metric_runs = absl::GetFlag(FLAGS_metric_runs),
              .reader_absence = absl::GetFlag(FLAGS_reader_absence),
              .inspected_bytes = absl::GetFlag(FLAGS_inspected_bytes),
          },
      .security = SecurityFromFlags(),
      .connections = ConnectionLimitsFromFlags(),
  };
}

// Returns the flags of this program, without those of libraries, by name.
std::map<std::string, const absl::CommandLineFlag*> OwnFlags() {
  std::map<std::string, const absl::CommandLineFlag*> own;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::StrContains(flag->Filename(), "server/main/")) own.emplace(name, flag);
  }
  return own;
}

std::string Text(const absl::CommandLineFlag& flag) {
  return absl::StrCat("--", flag.Name(), "=", flag.CurrentValue());
}

// Reads the command line, and files that --flagfile names. A flag that can't be parsed ends the
// process; InvalidArgument names one whose value makes no sense.
absl::Status ReadFlags(int argc, char** argv) {
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", rest[1], "' is no flag"));
  }
  for (const auto& [name, flag] : OwnFlags()) {
    if (const std::string problem = FlagProblem(name); !problem.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(Text(*flag), problem));
    }
  }
  return absl::OkStatus();
}

// Prints a file for --flagfile.
void PrintFlags() {
  const std::set<std::string> of_this_call = {"check", "parent", "probe", "probe_ca"};
  for (const auto& [name, flag] : OwnFlags()) {
    if (!of_this_call.contains(name)) std::cout << Text(*flag) << '\n';
  }
  std::cout << std::flush;
}

// Raises the soft limit of file descriptors to the hard one: what a shell gives is meant for
// programs that use select(2).
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The exit status of a server that doesn't start, once it has said why.
int Refuse(const absl::Status& status) {
  std::cerr << "sis_server: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("The SIS ratio service. See README.md.");
  absl::FlagsUsageConfig usage;
  usage.version_string = [] { return absl::StrCat("sis_server ", sis::kVersion, "\n"); };
  absl::SetFlagsUsageConfig(usage);
  if (absl::Status status = sis::ReadFlags(argc, argv); !status.ok()) return sis::Refuse(status);
  if (const std::string address = absl::GetFlag(FLAGS_probe); !address.empty()) {
    const absl::Status status =
        sis::Probe(address, {.ca = absl::GetFlag(FLAGS_probe_ca),
                             .certificate = absl::GetFlag(FLAGS_tls_certificate),
                             .key = absl::GetFlag(FLAGS_tls_key)});
    if (!status.ok()) return sis::Refuse(status);
    std::cout << address << ": serving" << std::endl;
    return 0;
  }
  const sis::ServerOptions options = sis::OptionsFromFlags();
  sis::PrintFlags();
  if (absl::GetFlag(FLAGS_check)) {
    absl::Status status = sis::CheckOptions(options);
    if (status.ok()) status = sis::CheckFiles(options);
    return status.ok() ? 0 : sis::Refuse(status);
  }
  sis::RaiseDescriptorLimit();
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
  if (!server.ok()) return sis::Refuse(server.status());
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
  while (sigtimedwait(&signals, nullptr, &kSecond) < 0 && !sis::ParentIsGone()) {
  }
  std::cout << "shutting down" << std::endl;
  (*server)->Shutdown(absl::GetFlag(FLAGS_shutdown_grace));
  return 0;
}
