// SPDX-License-Identifier: Apache-2.0
// The key by which nodes of torchrun mode know each other. Thread: any; reads the file of
// --join-secret-file.
#pragma once

#include <string>

#include "launcher/options/options.h"
#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

// Names the key in clear on the wire.
inline constexpr char kJoinIdentity[] = "ivyrun-join";
// A shorter secret could be guessed by who records a handshake.
inline constexpr std::size_t kJoinSecretMinBytes = 16;
inline constexpr std::size_t kJoinSecretMaxBytes = 4096;
// Contains the secret if no file does.
inline constexpr char kJoinSecretVariable[] = "IVY_JOIN_SECRET";

struct JoinKey {
  std::string key;
  bool is_secret = false;  // Made of a secret, not only of what anybody may know.
};

// InvalidArgument: the secret is too short, or its file cannot be read.
Result<JoinKey> join_key(const JoinOptions& options, const Environment& caller);

}  // namespace ivy
