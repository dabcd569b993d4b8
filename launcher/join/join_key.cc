// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/join_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <cerrno>

#include "proto/os/files.h"
#include "proto/wire/dial_wire.h"

namespace ivy {
namespace {

// Removes the newline that editors and `echo` append.
std::string without_line_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

// Returns the secret; empty if none was given.
Result<std::string> read_secret(const JoinOptions& options, const Environment& caller) {
  const std::string* const variable = find_variable(caller, kJoinSecretVariable);
  std::string secret;
  std::string where = kJoinSecretVariable;
  if (!options.join_secret_file.empty()) {
    where = "--join-secret-file " + options.join_secret_file;
    // One byte more than the limit shows that a file is too long.
    const auto read = read_file(options.join_secret_file, kJoinSecretMaxBytes + 1);
    if (!read) return errno_error(Code::kInvalidArgument, where, errno);
    secret = without_line_end(*read);
  } else if (variable != nullptr && !variable->empty()) {
    secret = *variable;
  } else {
    return secret;
  }
  if (secret.size() >= kJoinSecretMinBytes && secret.size() <= kJoinSecretMaxBytes) return secret;
  return Error{Code::kInvalidArgument,
               where + ": a secret of " + std::to_string(secret.size()) + " bytes; it must have " +
                   std::to_string(kJoinSecretMinBytes) + " to " +
                   std::to_string(kJoinSecretMaxBytes),
               "make one: openssl rand -hex 32 > FILE, and give every node that file"};
}

}  // namespace

Result<JoinKey> join_key(const JoinOptions& options, const Environment& caller) {
  const std::string secret = IVY_TRY(read_secret(options, caller));
  const std::string text = "ivyrun join 1\n" + options.run_id;
  JoinKey made;
  made.is_secret = !secret.empty();
  static_assert(kDialKeyBytes == SHA256_DIGEST_LENGTH, "HMAC() writes this many bytes");
  made.key.resize(kDialKeyBytes);
  const auto* const result = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                  reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                  reinterpret_cast<unsigned char*>(made.key.data()), nullptr);
  if (result == nullptr) return Error{Code::kInternal, "OpenSSL cannot compute HMAC-SHA-256"};
  return made;
}

}  // namespace ivy
