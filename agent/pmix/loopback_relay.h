// SPDX-License-Identifier: Apache-2.0
// The port at which any MPI library of this host's ranks finds the PMIx server, whichever process
// of a worker it is in: the supervisor has opened it before there was a server. Each connection
// is passed on to libpmix's own port, which is known when libpmix runs.
//
// Thread: a thread accepts, and each connection has one. Lifetime: that of the process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// Returns libpmix's port for this process of a rank; on an error the process is rejected. Called
// from the accepting thread.
using PortFor = std::function<Result<std::uint16_t>(pid_t process)>;

// `listening` is a TCP socket on loopback. Peers of other users are closed.
void relay_loopback(Descriptor listening, PortFor port_for);

}  // namespace ivy
