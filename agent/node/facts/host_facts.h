// SPDX-License-Identifier: Apache-2.0
// Collects the facts about its host that a supervisor sends to the launcher. Reads files and
// queries the kernel; starts no process and uses no name service, so it takes a fraction of a
// millisecond. Thread: any.
#pragma once

#include "proto/wire/job.pb.h"

namespace ivy {

// Host name, user, boot id, addresses, cores, limits, clock and architecture. Program, port,
// containment, directory and accelerators (agent/devices/discovery.h) are for the caller to add.
HostFacts collect_host_facts();

}  // namespace ivy
