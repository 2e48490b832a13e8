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
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/backend_choice.h"
#include "kernels/block/block.h"
#include "proto/version.h"
#include "server/auth/roles.h"
#include "server/main/check_options.h"
#include "server/main/probe.h"
#include "server/main/server.h"

ABSL_FLAG(bool, check, false, "print and check the flags and the files that they name, then exit");
ABSL_FLAG(std::string, probe, "",
          "gRPC address of a server, host:port or unix:path, to check instead of serving; the exit "
          "status is 0 if that server serves");
ABSL_FLAG(std::string, probe_ca, "",
          "PEM file of the authority of the server's certificate, for --probe over TLS; "
          "--tls_certificate and --tls_key are the client's certificate");
ABSL_FLAG(int, parent, 0,
          "parent process id; when that process exits, shut down as on SIGTERM; 0: keep running");
ABSL_FLAG(std::string, listen, sis::ServerOptions().listen,
          "gRPC addresses, host:port or unix:path, separated by commas; port 0 picks a free port");
ABSL_FLAG(std::string, admin, sis::ServerOptions().admin,
          "HTTP address of /metrics, /livez and /readyz, host:port; empty for none");
ABSL_FLAG(int64_t, cache_bytes, sis::ServerOptions().cache_bytes,
          "maximum memory of recorded sequences, in bytes");
ABSL_FLAG(int64_t, max_message_bytes, sis::ServerOptions().max_message_bytes,
          "maximum size of a gRPC message, in bytes");
ABSL_FLAG(int, evaluate_threads, static_cast<int>(std::thread::hardware_concurrency()),
          "number of threads that evaluate");
ABSL_FLAG(std::string, backend, "auto",
          "backend of Evaluate: auto, cpu or cuda; cpu is used without a usable CUDA device");
ABSL_FLAG(int64_t, device_cache_bytes, -1,
          "CUDA memory for copies of recorded blocks, in bytes, allocated at start; 0: none; -1: a "
          "quarter of the free memory, at most --cache_bytes");
ABSL_FLAG(std::string, store, sis::ServerOptions().store,
          "store of sequences: memory (lost at exit), rocksdb:DIR[?sync=1], or "
          "redis[s]://HOST[:PORT], which servers can share (docs/operations.md)");
ABSL_FLAG(absl::Duration, shutdown_grace, absl::Seconds(10),
          "maximum time for calls in flight to finish after SIGTERM");
ABSL_FLAG(absl::Duration, default_deadline, sis::ServerOptions().default_deadline,
          "deadline of responses to clients that set none; then the call fails with "
          "DEADLINE_EXCEEDED; inf: none");
ABSL_FLAG(int, max_top_k, sis::Limits().max_top_k, "maximum K of a run, in [1, 254]");
ABSL_FLAG(int64_t, max_evaluate_positions, sis::Limits().max_evaluate_positions,
          "maximum number of positions in one Evaluate or FetchTopK");
ABSL_FLAG(int, max_runs, sis::Limits().max_runs, "maximum number of runs");
ABSL_FLAG(int, max_runs_per_owner, sis::Limits().max_runs_per_owner,
          "maximum number of runs of one owner, if callers authenticate");
ABSL_FLAG(int, metric_runs, sis::Limits().metric_runs,
          "maximum number of runs with their own metrics; the others share run=other");
ABSL_FLAG(absl::Duration, run_idle_expiry, sis::ServerOptions().run_idle_expiry,
          "time after which a run that no call names is deleted, for example 24h; inf: never");
ABSL_FLAG(absl::Duration, reader_absence, sis::Limits().reader_absence,
          "time without a fetch or evaluation of a run after which its unread sequences may be "
          "evicted when memory is short");
ABSL_FLAG(int64_t, inspected_bytes, sis::Limits().inspected_bytes,
          "maximum memory of inspected values, in bytes: the last evaluated values of a sample of "
          "sequences, for sisctl and the page; a run gets at most an eighth, a sequence half of "
          "that; 0: none");
ABSL_FLAG(std::string, tls_certificate, "",
          "PEM file of the server's TLS certificate, followed by intermediate certificates; "
          "reloaded when it changes (docs/security.md)");
ABSL_FLAG(std::string, tls_key, "", "PEM file of the private key of --tls_certificate");
ABSL_FLAG(
    std::string, tls_client_ca, "",
    "PEM file of the authority of client certificates; clients then need a certificate or a token");
ABSL_FLAG(std::string, proxy_certificate, "",
          "PEM file of the certificate of a proxy that terminates TLS; used only for the metric of "
          "its expiry");
ABSL_FLAG(
    std::string, identities, "",
    "file of tokens and certificate names, with the identity and role of each; every call then "
    "needs one of them; reloaded when it changes (docs/security.md)");
ABSL_FLAG(
    std::string, certificate_role, "",
    "role of clients whose certificate --identities does not name: viewer, worker, trainer or "
    "admin; empty: such clients are refused");
ABSL_FLAG(bool, insecure, false,
          "allow addresses that other machines can reach without TLS or without authentication, "
          "because something else protects them");
ABSL_FLAG(absl::Duration, reload_interval, sis::AuthOptions().reload_interval,
          "period of checks of certificates, keys and identities for changes, at least 1s");
ABSL_FLAG(int64_t, grpc_memory_bytes, sis::ConnectionLimits().grpc_memory_bytes,
          "maximum memory of connections and of messages in flight, in bytes; beyond it, idle "
          "connections are closed and calls fail; at least --max_message_bytes");

// Options that jemalloc reads before main. A background thread returns free memory to the system,
// even without calls. 15 s after a burst of 300 MB of messages less than 60 MB remained; without
// the thread 169 MB, with glibc's malloc 269 MB.
extern "C" {
const char* malloc_conf = "background_thread:true";
}

namespace sis {
namespace {

// Returns true if --parent is set and that process has exited. Signals and pipes are less reliable:
// PR_SET_PDEATHSIG watches a thread, and other children of the parent keep its pipes open.
bool ParentIsGone() {
  const int parent = absl::GetFlag(FLAGS_parent);
  return parent != 0 && getppid() != parent;
}

// Space for sixteen blocks of maximum size.
constexpr int64_t kMinCacheBytes = 16 * int64_t{kMaxBlockBytes};
constexpr int kMaxThreads = 4096;

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

// Returns what is wrong with the value of a flag, to follow "--flag=value". Empty if nothing is.
std::string FlagProblem(absl::string_view flag) {
  if (flag == "parent") return ParentIsGone() ? " is not the process that started it" : "";
  if (flag == "listen") return ListenProblem(absl::GetFlag(FLAGS_listen));
  if (flag == "admin") return AdminProblem(absl::GetFlag(FLAGS_admin));
  if (flag == "store") return StoreProblem(absl::GetFlag(FLAGS_store));
  if (flag == "backend") {
    const bool known = ParseBackendKind(absl::GetFlag(FLAGS_backend)).has_value();
    return known ? "" : " is not auto, cpu or cuda";
  }
  if (flag == "certificate_role") {
    const std::string role = absl::GetFlag(FLAGS_certificate_role);
    const bool known = role.empty() || ParseRole(role).has_value();
    return known ? "" : " is not viewer, worker, trainer or admin";
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
  is_in(FLAGS_cache_bytes, kMinCacheBytes, INT64_MAX);
  is_in(FLAGS_device_cache_bytes, -1, INT64_MAX);
  is_in(FLAGS_max_message_bytes, 1, INT32_MAX);
  is_in(FLAGS_evaluate_threads, 1, kMaxThreads);
  is_in(FLAGS_max_evaluate_positions, 1, INT64_MAX);
  is_in(FLAGS_max_runs, 1, INT32_MAX);
  is_in(FLAGS_max_runs_per_owner, 1, INT32_MAX);
  is_in(FLAGS_metric_runs, 0, INT32_MAX);
  is_in(FLAGS_inspected_bytes, 0, INT64_MAX);
  is_in(FLAGS_grpc_memory_bytes, 1, INT64_MAX);
  constexpr absl::Duration kEver = absl::InfiniteDuration();
  is_in(FLAGS_reader_absence, absl::ZeroDuration(), kEver);
  is_in(FLAGS_shutdown_grace, absl::ZeroDuration(), kEver);
  is_in(FLAGS_run_idle_expiry, absl::ZeroDuration(), kEver);
  is_in(FLAGS_default_deadline, absl::ZeroDuration(), kEver);
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
              .max_evaluate_positions = absl::GetFlag(FLAGS_max_evaluate_positions),
              .max_runs = absl::GetFlag(FLAGS_max_runs),
              .max_runs_per_owner = absl::GetFlag(FLAGS_max_runs_per_owner),
              .metric_runs = absl::GetFlag(FLAGS_metric_runs),
              .reader_absence = absl::GetFlag(FLAGS_reader_absence),
              .inspected_bytes = absl::GetFlag(FLAGS_inspected_bytes),
          },
      .security = SecurityFromFlags(),
      .connections = {.grpc_memory_bytes = absl::GetFlag(FLAGS_grpc_memory_bytes)},
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

// Reads the command line, and the files of --flagfile. Exits if a flag can't be parsed. Returns
// InvalidArgument, naming the flag, for an invalid value.
absl::Status ReadFlags(int argc, char** argv) {
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", rest[1], "' is not a flag"));
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

// Raises the soft limit of file descriptors to the hard limit. The default is low only for programs
// that use select(2).
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Prints the reason why the server doesn't start, and returns the exit status.
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
  // Otherwise Debian's Abseil, which is a debug build, checks the order of all locks, gRPC's
  // included, under one lock of its own.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // The reader of stdout may exit before the server.
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
