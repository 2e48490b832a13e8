// The file of identities, permissions of roles, and safe addresses.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "server/auth/auth_options.h"
#include "server/auth/identities.h"
#include "server/auth/roles.h"

namespace sis {
namespace {

TEST(IdentitiesTest, FindsTheEntriesOfTheFile) {
  const absl::StatusOr<Identities> identities = Identities::Parse(
      "# who there is\n"
      "\n"
      "token 0123456789abcdef alice trainer\n"
      "  token\tfedcba9876543210\talice viewer  \r\n"
      // The digest of "0123456789abcdef0123456789abcdef".
      "sha256 3EB1BD439947eb762998e566ccc2e099c791118b2f40579cc4f7da2b5061b7f9 bob worker\n"
      "certificate node-1.example.org carol admin");
  ASSERT_TRUE(identities.ok()) << identities.status();
  EXPECT_EQ(identities->size(), 4);
  ASSERT_NE(identities->FindToken("0123456789abcdef"), nullptr);
  EXPECT_EQ(*identities->FindToken("0123456789abcdef"), (Identity{"alice", Role::kTrainer}));
  EXPECT_EQ(*identities->FindToken("fedcba9876543210"), (Identity{"alice", Role::kViewer}));
  EXPECT_EQ(*identities->FindCertificate("node-1.example.org"), (Identity{"carol", Role::kAdmin}));
  EXPECT_NE(identities->FindToken("0123456789abcdef0123456789abcdef"), nullptr);
  for (const char* wrong :
       {"", "0123456789abcdeg", "0123456789abcdef ", "0123456789abcde", "node-1.example.org",
        // A digest, which a reader of the file knows, is no valid token.
        "3EB1BD439947eb762998e566ccc2e099c791118b2f40579cc4f7da2b5061b7f9"}) {
    EXPECT_EQ(identities->FindToken(wrong), nullptr) << wrong;
  }
  EXPECT_EQ(identities->FindCertificate("0123456789abcdef"), nullptr);
}

TEST(IdentitiesTest, RefusesNonsenseByLineAndShowsNoToken) {
  const std::string secret = "s3cr3t-s3cr3t-s3cr3t";
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "it names nobody"},
           {"token " + secret + " alice", "line 3: 3 fields"},
           {"token " + secret + " alice trainer now", "line 3: 5 fields"},
           {"token " + secret + " alice boss", "line 3: the role"},
           {"token alice " + secret + " trainer", "line 3: a token of 5 bytes"},
           {secret + " token alice trainer", "line 3: the line (field 1)"},
           {"sha256 " + secret + " alice trainer", "line 3: sha256 takes 64"},
           {"token " + secret + " " + std::string(257, 'a') + " trainer", "line 3: an identity of"},
           {"token " + secret + " \xc3\xa9 trainer", "line 3: the identity is not visible"},
           {"token " + secret + " a viewer\ntoken " + secret + " b viewer", "line 4: the token"},
           {"certificate n a viewer\ncertificate n b viewer", "line 4: the certificate"}}) {
    const absl::Status status = Identities::Parse("\n# of the team\n" + line).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), secret)) << status;
  }
}

TEST(IdentitiesTest, AnIdentityIsBoundedAndVisible) {
  for (const std::string& name : {std::string("a"), std::string("Jane Doe"),
                                  std::string("spiffe://example.org/a"), std::string(256, 'x')}) {
    EXPECT_TRUE(CheckIdentity(name).ok()) << name;
  }
  for (const std::string& name : {std::string(), std::string(257, 'x'), std::string(" a"),
                                  std::string("a "), std::string("a\nb"), std::string("a\0b", 3),
                                  std::string("\xc3\xa9"), std::string("\xff")}) {
    EXPECT_EQ(CheckIdentity(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(RolesTest, TheTableHasEveryMethodOfTheServiceOnce) {
  std::set<std::string> methods;
  const google::protobuf::ServiceDescriptor& service =
      *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("sis.v1.RatioService");
  for (int i = 0; i < service.method_count(); ++i) methods.insert(service.method(i)->name());
  std::set<std::string> table;
  for (const auto& [method, role] : kRequiredRoles) table.emplace(method);
  EXPECT_EQ(table, methods);
  EXPECT_EQ(table.size(), kRequiredRoles.size());
  EXPECT_FALSE(RequiredRole("GetRuns").has_value());
}

TEST(AuthOptionsTest, OtherMachinesNeedTlsAndIdentitiesOrInsecure) {
  const std::vector<std::string> addresses = {"unix:/run/sis", "0.0.0.0:50051"};
  const auto check = [&](const AuthOptions& options) { return CheckSecurity(options, addresses); };
  const AuthOptions tls = {.tls_certificate = "c", .tls_key = "k"};
  AuthOptions both = tls;
  both.identities = "i";
  AuthOptions certificates = tls;
  certificates.tls_client_ca = "ca";
  certificates.certificate_role = Role::kWorker;
  EXPECT_TRUE(check(both).ok());
  EXPECT_TRUE(check(certificates).ok());
  EXPECT_TRUE(check({.insecure = true}).ok());
  EXPECT_TRUE(CheckSecurity({}, std::vector<std::string>{"unix:/s", "127.0.0.1:1"}).ok());
  for (const auto& [options, flag] : std::vector<std::pair<AuthOptions, std::string>>{
           {{}, "--tls_certificate"},
           {tls, "--identities"},
           {{.identities = "i"}, "--tls_certificate"}}) {
    const absl::Status status = check(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "--listen=0.0.0.0:50051")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), flag)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "--insecure")) << status;
  }
}

TEST(AuthOptionsTest, FlagsThatContradictEachOtherAreNamed) {
  for (const auto& [options, flag] : std::vector<std::pair<AuthOptions, std::string>>{
           {{.tls_certificate = "c"}, "--tls_key"},
           {{.tls_key = "k"}, "--tls_certificate"},
           {{.tls_client_ca = "ca"}, "--tls_client_ca needs"},
           {{.certificate_role = Role::kWorker}, "--certificate_role needs"},
           {{.tls_certificate = "c", .tls_key = "k", .tls_client_ca = "ca"}, "--identities or"},
           {{.reload_interval = absl::Milliseconds(999)}, "--reload_interval"}}) {
    const absl::Status status = CheckSecurity(options, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), flag)) << status;
  }
}

}  // namespace
}  // namespace sis
