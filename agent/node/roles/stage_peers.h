// SPDX-License-Identifier: Apache-2.0
// Connections between hosts that pass staged files on. Both ends prove that they know the job's
// token and which host they are (proto/wire/handshake.h). The data is not encrypted, but the
// receiver checks the hash of each file against the manifest, which it has from the launcher.
// Thread: any; blocks within short deadlines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"
#include "proto/wire/stage.pb.h"

namespace ivy::stage {

struct Listening {
  Descriptor socket;
  std::vector<std::string> addresses;
  std::uint16_t port = 0;
};

// Listens for the next host, on the interface and in the range of ports that `begin` names.
Result<Listening> listen_for_peer(const StageBegin& begin);
// Accepts a waiting connection. Fails if its peer does not belong to the job.
Result<Descriptor> accept_peer(int listening, const StageBegin& begin);
// Connects to the host before this one.
Result<Descriptor> dial_peer(const StageFeedFrom& to, const StageBegin& begin);

}  // namespace ivy::stage
