#include "server/auth/authenticator.h"

#include <grpc/grpc_security_constants.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/auth/regular_file.h"

namespace sis {
namespace {

constexpr absl::string_view kBearer = "bearer ";

absl::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// The names of a certificate that the connection's TLS has verified, the common name first.
std::vector<std::string> CertificateNames(const grpc::CallbackServerContext& context) {
  std::vector<std::string> names;
  const std::shared_ptr<const grpc::AuthContext> connection = context.auth_context();
  if (connection == nullptr) return names;
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : connection->FindPropertyValues(property)) {
      if (!name.empty()) names.emplace_back(name.data(), name.size());
    }
  }
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Make(const AuthOptions& options) {
  auto authenticator = std::make_unique<Authenticator>();
  authenticator->file_ = options.identities;
  authenticator->certificate_role_ = options.certificate_role;
  authenticator->asks_ = options.asks();
  const absl::StatusOr<bool> read = authenticator->Reload();
  if (!read.ok()) {
    return absl::Status(read.status().code(),
                        absl::StrCat("--identities: ", read.status().message()));
  }
  return authenticator;
}

absl::StatusOr<bool> Authenticator::Reload() {
  if (file_.empty()) return false;
  absl::StatusOr<std::string> text = ReadRegularFile(file_);
  if (!text.ok()) return text.status();
  {
    ReaderLock lock(mutex_);
    if (identities_ != nullptr && *text == text_) return false;
  }
  absl::StatusOr<Identities> identities = Identities::Parse(*text);
  if (!identities.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", identities.status().message()));
  }
  auto read = std::make_shared<const Identities>(*std::move(identities));
  WriterLock lock(mutex_);
  text_ = *std::move(text);
  identities_ = std::move(read);
  return true;
}

absl::StatusOr<Identity> Authenticator::Identify(const grpc::CallbackServerContext& context,
                                                 const Identities* identities) const {
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find("authorization"); found != metadata.end()) {
    absl::string_view token = View(found->second);
    if (!absl::StartsWithIgnoreCase(token, kBearer)) {
      return absl::UnauthenticatedError("authorization: must be 'Bearer TOKEN'");
    }
    token.remove_prefix(kBearer.size());
    const Identity* known = identities == nullptr ? nullptr : identities->FindToken(token);
    if (known != nullptr) return *known;
    return absl::UnauthenticatedError("authorization: the token is not known");
  }
  const std::vector<std::string> names = CertificateNames(context);
  if (names.empty()) {
    return absl::UnauthenticatedError(
        "neither a token (authorization: Bearer TOKEN) nor a "
        "certificate says who calls");
  }
  if (identities != nullptr) {
    for (const std::string& name : names) {
      if (const Identity* known = identities->FindCertificate(name); known != nullptr) {
        return *known;
      }
    }
  }
  if (certificate_role_.has_value()) {
    if (absl::Status fits = CheckIdentity(names.front()); !fits.ok()) {
      return absl::UnauthenticatedError(absl::StrCat(
          "the certificate's common name, or else its first alternative name: ", fits.message()));
    }
    return Identity{.name = names.front(), .role = *certificate_role_};
  }
  return absl::UnauthenticatedError("the certificate's name is not known");
}

absl::StatusOr<Identity> Authenticator::Authorize(const grpc::CallbackServerContext& context,
                                                  absl::string_view method) const {
  if (!asks_) return Identity{.name = "", .role = Role::kAdmin};
  std::shared_ptr<const Identities> identities;
  {
    ReaderLock lock(mutex_);
    identities = identities_;
  }
  absl::StatusOr<Identity> identity = Identify(context, identities.get());
  if (!identity.ok()) return identity.status();
  const std::optional<Role> required = RequiredRole(method);
  if (!required.has_value()) {
    return absl::PermissionDeniedError(absl::StrCat(method, " is for nobody"));
  }
  if (identity->role < *required) {
    return absl::PermissionDeniedError(absl::StrCat(method, " needs the role ",
                                                    std::string(NameOf(*required)), ", not ",
                                                    std::string(NameOf(identity->role))));
  }
  return identity;
}

}  // namespace sis
