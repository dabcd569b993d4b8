// What a supervisor tells the launcher about its host. Reads files and asks the kernel; starts no
// process and asks no name service, so the whole answer takes a fraction of a millisecond.
// Thread: any.
#pragma once

#include "proto/wire/job.pb.h"

namespace ivy {

// Host name, user, boot id, addresses, cores, limits, clock and architecture. Program, port,
// containment, directory and accelerators (agent/devices/discovery.h) are for the caller to add.
HostFacts collect_host_facts();

}  // namespace ivy
