// Identifies callers, and checks their permissions.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/auth/auth_options.h"
#include "server/auth/identities.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe. A call costs a SHA-256 of its token, a look-up, and a shared lock.
class Authenticator {
 public:
  // Reads the file of identities, if there is one. Returns InvalidArgument if it can't be read or
  // parsed.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Make(const AuthOptions& options);

  // Returns the identity of the caller. Returns Unauthenticated unless the call has a valid token
  // or, without a token, the connection a known certificate; PermissionDenied if the role does not
  // suffice for the method of RatioService. Without authentication everybody is an admin without a
  // name.
  absl::StatusOr<Identity> Authorize(const grpc::CallbackServerContext& context,
                                     absl::string_view method) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Reads the file again, and returns true if it has changed. After an error nothing has changed.
  absl::StatusOr<bool> Reload() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<Identity> Identify(const grpc::CallbackServerContext& context,
                                    const Identities* identities) const;

  std::string file_;  // empty: none
  std::optional<Role> certificate_role_;
  bool asks_ = false;

  mutable Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);  // the file's text, when it was last read
  // Immutable; a reload replaces the object. Null without a file.
  std::shared_ptr<const Identities> identities_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
