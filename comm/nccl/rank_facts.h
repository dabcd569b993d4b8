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
  int prefix_bits = 0;  // The length of the address's network prefix; 0: not known.
};

// ~0: no limit.
struct ResourceLimits {
  std::uint64_t shared_memory_free = 0;  // Bytes that /dev/shm has left.
  std::uint64_t locked_memory = ~0ULL;
  std::uint64_t stack = 8 << 20;
  std::uint64_t open_files = ~0ULL;
  bool may_lose_shared_memory = false;  // collect_rank_facts.h says when that is.
};

struct RankFacts {
  std::int32_t rank = 0;  // Its number in the world.
  std::string host;       // The name of its host in messages.
  std::int32_t pid = 0;
  std::string machine;  // Boot id: equal where devices and /dev/shm are shared.
  std::string network;  // Its network namespace: another one, even on this machine, has another lo.
  // An error that only this rank has found, with its fix: no driver, the wrong library ...
  std::string trouble;
  std::string trouble_fix;

  int nccl_version = 0;
  std::string nccl_path;
  int driver_version = 0;
  std::string uuid;  // The UUID of the rank's device.
  std::string bus;
  std::vector<Interface> interfaces;             // In the order in which the system lists them.
  std::uint16_t probe_port = 0;                  // interface_probe.h; 0: it does not listen.
  std::map<std::string, std::string> variables;  // All NCCL_* variables, and IVY_DEVICE_CHECK.
  // The communicator that a death has broken and from which this rank could make the new one; the
  // same on all: they do.
  std::string parent;
  bool shares_devices = false;  // The launcher says that devices are shared on purpose.
  bool has_infiniband = false;
  std::string user;
  ResourceLimits limits;
};

}  // namespace ivy::comm::nccl
