// SPDX-License-Identifier: Apache-2.0
// The key with which the nodes of torchrun mode authenticate each other: derived from the run id
// and, if there is one, from a secret (--join-secret-file or a variable). Thread: any; reads the
// file of --join-secret-file.
#pragma once

#include <string>

#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Names the key, unencrypted, in a TLS handshake.
inline constexpr char kJoinIdentity[] = "ivyrun-join";
// Minimum length of a secret: an observer of a handshake could guess a shorter one.
inline constexpr std::size_t kJoinSecretMinBytes = 16;
inline constexpr std::size_t kJoinSecretMaxBytes = 4096;
// The environment variable with the secret, read if no file was given.
inline constexpr char kJoinSecretVariable[] = "IVY_JOIN_SECRET";

struct JoinKey {
  std::string key;
  // Derived from a secret and the run id. If false, only from the run id: then whoever knows the
  // run id knows the key.
  bool is_secret = false;
};

// Derives the key: HMAC-SHA-256 of the run id with the secret. The run id separates jobs that use
// the same port by mistake. A file takes precedence over the variable, as every flag does. Returns
// InvalidArgument if the secret is too short or too long, or if its file cannot be read.
Result<JoinKey> join_key(const JoinOptions& options, const Environment& caller);

}  // namespace ivy
