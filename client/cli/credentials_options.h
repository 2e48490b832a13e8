// How sisctl says who it is: options that stand in for the environment's.
#pragma once

#include <CLI/App.hpp>

#include "client/api/client.h"

namespace sis {

// A token itself is no option: whoever lists processes would see it.
inline void AddCredentials(CLI::App& app, Credentials& credentials) {
  app.add_flag("--tls", credentials.tls, "Use TLS; $SIS_TLS=1.");
  app.add_option("--ca", credentials.ca,
                 "File of those whose certificates the service may have; $SIS_CA_FILE.");
  app.add_option("--certificate", credentials.certificate,
                 "File of the own certificate; $SIS_CERTIFICATE_FILE.");
  app.add_option("--key", credentials.key, "File of its key; $SIS_KEY_FILE.");
  app.add_option("--token_file", credentials.token_file,
                 "File of the token; $SIS_TOKEN_FILE, or $SIS_TOKEN with the token itself.");
  app.add_flag("--plaintext_token", credentials.plaintext_token,
               "Send the token to other machines without TLS too; $SIS_PLAINTEXT_TOKEN=1.");
}

}  // namespace sis
