#include "server/main/probe.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/auth/regular_file.h"

namespace sis {
namespace {

constexpr std::chrono::seconds kPatience(5);
// A grpc.health.v1.HealthCheckResponse whose status is SERVING.
constexpr char kServing[] = "\x08\x01";

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const ProbeFiles& files) {
  if (files.ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  const struct {
    const std::string& file;
    std::string& pem;
  } parts[] = {{files.ca, options.pem_root_certs},
               {files.certificate, options.pem_cert_chain},
               {files.key, options.pem_private_key}};
  for (const auto& [file, pem] : parts) {
    if (file.empty()) continue;
    absl::StatusOr<std::string> text = ReadRegularFile(file);
    if (!text.ok()) return text.status();
    pem = *std::move(text);
  }
  return grpc::SslCredentials(options);
}

// Returns the bytes of a message, which must be in one buffer.
std::string Bytes(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  if (!message.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

}  // namespace

absl::Status Probe(const std::string& address, const ProbeFiles& files) {
  // The error has the same text as gRPC's log. gRPC reads the variable when it is first used.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = Credentials(files);
  if (!credentials.ok()) return credentials.status();
  grpc::GenericStub health(grpc::CreateChannel(address, *credentials));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  // An empty request asks about the whole server.
  const grpc::ByteBuffer request(nullptr, 0);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> answered;
  health.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                   [&](grpc::Status status) { answered.set_value(std::move(status)); });
  const grpc::Status status = answered.get_future().get();
  if (!status.ok()) {
    return absl::UnavailableError(absl::StrCat(address, ": ", status.error_message()));
  }
  if (Bytes(response) != kServing) {
    return absl::UnavailableError(absl::StrCat(address, ": not serving"));
  }
  return absl::OkStatus();
}

}  // namespace sis
