// What a supervisor tells the launcher about its host. Reads files and asks the kernel; starts no
// process and asks no name service, so the whole answer takes a fraction of a millisecond.
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/wire/job.pb.h"

namespace ivy {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // Numeric.
  bool loopback = false;
};

// IPv4 and IPv6 addresses of interfaces that are up, at most 1024. Link-local IPv6 addresses are
// left out: they mean nothing without a zone, so no worker could be given one.
std::vector<InterfaceAddress> interface_addresses();

// Host name, user, boot id, addresses, cores, limits, clock and architecture. Program, port,
// containment, directory and accelerators (agent/devices/discovery.h) are for the caller to add.
HostFacts collect_host_facts();

}  // namespace ivy
