// SPDX-License-Identifier: Apache-2.0
// --map-by: the order in which hosts and their accelerators get ranks. Pure; thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/plan/plan_context.h"

namespace ivy {

// Returns the location of a host: "5a3b.../0", its NVLink domain, or "core1.leaf2", the network
// switches above it. Empty with --map-by host, or if the host does not know its location.
std::string host_domain(const Options& options, const HostFacts& facts);

// Returns the indices of the answers in rank order. Hosts of a domain are consecutive; domains, and
// the hosts in each, keep the order of -H, so that the first host remains first. Warns about hosts
// that do not know their domain (IVY-P028); each counts as a separate domain.
std::vector<std::size_t> host_order(PlanContext& context);

// Reorders accelerators likewise: those behind one PCI switch become consecutive (--map-by switch).
// `devices` are indices into HostFacts::devices.
void order_devices(const Options& options, const HostFacts& facts, std::vector<int>& devices);

}  // namespace ivy
