// SPDX-License-Identifier: Apache-2.0
// Collects the facts about its host that a supervisor sends to the launcher. Reads files and
// queries the kernel; starts no process and uses no name service, so it takes a fraction of a
// millisecond. Thread: any.
#pragma once

#include "proto/wire/job.pb.h"

namespace ivy {

// Collects host name, user, boot id, addresses, cores, processor quota and architecture. The caller
// adds program, port, containment, directory and accelerators (agent/devices/discovery.h).
HostFacts collect_host_facts();

}  // namespace ivy
