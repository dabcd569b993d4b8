// SPDX-License-Identifier: Apache-2.0
// --include and --exclude: a selection of hosts, or of slots or accelerators on them. Pure; thread:
// any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/hosts.h"
#include "proto/contract/status.h"

namespace ivy {

// Hosts that were written together, and the numbers of the slots or accelerators that are selected
// on each of them. No number means the whole host.
struct HostPick {
  std::vector<std::string> names;
  std::vector<int> devices;
};

// Parses DeepSpeed's form "h1@h2:0,2", and lists with ranges as in -H: "node[01-08],node17:0-3". A
// number after a comma belongs to the preceding host.
Result<std::vector<HostPick>> parse_host_filter(std::string_view text);

// Returns only what is selected. The numbers mean slots if the host's slots were written, else
// accelerators. Returns NotFound with the names of hosts that are not in the list.
Result<std::vector<Host>> included_hosts(const std::vector<HostPick>& picks,
                                         const std::vector<Host>& hosts);
// Returns what is not selected, or InvalidArgument if nothing is left.
Result<std::vector<Host>> hosts_without(const std::vector<HostPick>& picks,
                                        const std::vector<Host>& hosts);

}  // namespace ivy
