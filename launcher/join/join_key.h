// SPDX-License-Identifier: Apache-2.0
// The key with which the nodes of torchrun mode authenticate each other. Thread: any; reads the
// file of --join-secret-file.
#pragma once

#include <string>

#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Identifies the key in plain text on the wire.
inline constexpr char kJoinIdentity[] = "ivyrun-join";
// An observer of a handshake could guess a shorter secret.
inline constexpr std::size_t kJoinSecretMinBytes = 16;
inline constexpr std::size_t kJoinSecretMaxBytes = 4096;
// Contains the secret if no file was given.
inline constexpr char kJoinSecretVariable[] = "IVY_JOIN_SECRET";

struct JoinKey {
  std::string key;
  bool is_secret = false;  // Derived from a secret, not only from public values.
};

// Returns InvalidArgument if the secret is too short or its file cannot be read.
Result<JoinKey> join_key(const JoinOptions& options, const Environment& caller);

}  // namespace ivy
