// SPDX-License-Identifier: Apache-2.0
// Facts of one rank before NCCL is tried (collect_rank_facts.h collects them, preflight.h compares
// them).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ivy::comm::nccl {

// A network interface that is up and has an address.
struct Interface {
  std::string name;
  std::string address;
  int prefix_bits = 0;  // The length of the address's network prefix, or 0 if it is not known.
};

// Limits of the process. ~0 means no limit.
struct ResourceLimits {
  std::uint64_t shared_memory_free = 0;  // Bytes that /dev/shm has left.
  std::uint64_t locked_memory = ~0ULL;
  std::uint64_t stack = 8 << 20;
  std::uint64_t open_files = ~0ULL;
  bool may_have_shared_memory_removed = false;  // See the function in collect_rank_facts.h.
};

struct RankFacts {
  std::int32_t rank = 0;  // The rank's number in the world.
  std::string host;       // The name of the rank's host in messages.
  std::int32_t pid = 0;
  std::string machine;  // The kernel's boot id. Ranks of one machine share devices and /dev/shm.
  std::string network;  // The network namespace. Each has separate interfaces and addresses.
  // An error that only this rank has found, with its fix: no driver, the wrong library ...
  std::string error;
  std::string error_fix;

  int nccl_version = 0;
  std::string nccl_path;
  int driver_version = 0;
  std::string uuid;                   // The UUID of the rank's device.
  std::string bus;                    // The PCI address of the device.
  std::vector<Interface> interfaces;  // In the order in which the system lists them.
  // The port for probes (interface_probe.h), or 0 if the rank does not listen for any.
  std::uint16_t probe_port = 0;
  std::map<std::string, std::string> variables;  // All NCCL_* variables, and IVY_DEVICE_CHECK.
  // The key of the broken communicator from which this rank could create the new one by a shrink.
  // If it is the same on all ranks, they do so.
  std::string parent;
  bool shares_devices = false;  // Devices are shared on purpose (IVY_OVERSUBSCRIBE=1).
  bool has_infiniband = false;
  std::string user;
  ResourceLimits limits;
};

}  // namespace ivy::comm::nccl
