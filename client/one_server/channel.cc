#include "client/one_server/channel.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/client_interceptor.h>

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/addresses/addresses.h"

namespace sis {
namespace {

// How often files are looked at for changes.
constexpr unsigned kReloadSeconds = 10;

std::shared_ptr<grpc::ChannelCredentials> TlsOf(const Credentials& credentials) {
  grpc::experimental::TlsChannelCredentialsOptions tls;
  if (!credentials.ca.empty() || !credentials.certificate.empty()) {
    tls.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
            credentials.key, credentials.certificate, credentials.ca, kReloadSeconds));
  }
  if (!credentials.ca.empty()) tls.watch_root_certs();
  if (!credentials.certificate.empty()) tls.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(tls);
}

// The token, which may stand in a file that changes. Thread-safe.
class Token {
 public:
  explicit Token(const Credentials& credentials)
      : file_(credentials.token_file), token_(credentials.token) {}

  std::string Get() {
    const std::lock_guard lock(mutex_);
    const absl::Time now = absl::Now();
    if (!file_.empty() && now - read_at_ >= absl::Seconds(kReloadSeconds)) {
      // One that is just being replaced changes nothing.
      if (std::string token = ReadToken(file_); !token.empty()) token_ = std::move(token);
      read_at_ = now;
    }
    return token_;
  }

 private:
  const std::string file_;
  std::mutex mutex_;
  std::string token_;  // guarded by mutex_, as is the next
  absl::Time read_at_ = absl::InfinitePast();
};

// Adds a header to a call.
class HeaderInterceptor final : public grpc::experimental::Interceptor {
 public:
  HeaderInterceptor(const char* name, std::string value) : name_(name), value_(std::move(value)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(name_, value_);
    }
    methods->Proceed();
  }

 private:
  const char* const name_;
  const std::string value_;
};

// Adds what is asked for when a call begins, unless that is empty. Outlives the calls of its
// channel.
class HeaderInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  HeaderInterceptors(const char* name, std::function<std::string()> value)
      : name_(name), value_(std::move(value)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    std::string value = value_();
    return value.empty() ? nullptr : new HeaderInterceptor(name_, std::move(value));
  }

 private:
  const char* const name_;
  const std::function<std::string()> value_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const Credentials& credentials, bool own_connection) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Large messages come in few frames; by default they are of 16 KiB.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  // A server that comes back may have another address. By default that may take minutes to see.
  // An attempt to connect that gets no answer is given up after 3 seconds (the minimum between
  // attempts), by default after 20.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  // gRPC sends a call again by itself if the server has not looked at it, and older ones (1.51)
  // then may leave out a stream's first large message.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, own_connection ? 1 : 0);
  // What doesn't leave the machine's kernel needs no TLS, and servers offer none there.
  const bool has_tls = credentials.has_tls() && !IsUnixSocket(address);
  const std::shared_ptr<grpc::ChannelCredentials> transport =
      has_tls ? TlsOf(credentials) : grpc::InsecureChannelCredentials();
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (credentials.has_token()) {
    interceptors.push_back(std::make_unique<HeaderInterceptors>(
        "authorization", [token = std::make_shared<Token>(credentials)] {
          return absl::StrCat("Bearer ", token->Get());
        }));
  }
  if (interceptors.empty()) return grpc::CreateCustomChannel(address, transport, arguments);
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, transport, arguments,
                                                                 std::move(interceptors));
}

}  // namespace sis
