// SPDX-License-Identifier: Apache-2.0
// --map-by: the order in which hosts, and the accelerators of each, get their ranks. Pure; thread:
// any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/plan/plan_context.h"

namespace ivy {

// The location of a host: "5a3b.../0", its NVLink domain; "core1.leaf2", the network switches above
// it. Empty with --map-by host, or if the host does not know it.
std::string host_domain(const Options& options, const HostFacts& facts);

// Indices of the answers in rank order. Hosts of a domain follow each other; domains, and the hosts
// in them, keep the order of -H, so that the first host stays the first. Warns of hosts that do not
// know their domain (IVY-P028), which stand alone.
std::vector<std::size_t> host_order(PlanContext& context);

// The same for accelerators: those behind one PCI switch follow each other (--map-by switch).
// `devices` are indices into HostFacts::devices.
void order_devices(const Options& options, const HostFacts& facts, std::vector<int>& devices);

}  // namespace ivy
