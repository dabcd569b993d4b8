// SPDX-License-Identifier: Apache-2.0
// --include and --exclude: some hosts of the list, or some places on them. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/hosts.h"
#include "proto/contract/status.h"

namespace ivy {

// Hosts that are written together, and the places on each of them; none: the whole host.
struct HostPick {
  std::vector<std::string> names;
  std::vector<int> places;
};

// DeepSpeed's "h1@h2:0,2", and lists of ranges as -H has them: "node[01-08],node17:0-3". A number
// behind a comma is a place of the host before it.
Result<std::vector<HostPick>> parse_host_filter(std::string_view text);

// Leaves the picked hosts and places. Places of a host count its slots where they are written, else
// its accelerators. NotFound names hosts that are not in the list.
Result<std::vector<Host>> included_hosts(const std::vector<HostPick>& picks,
                                         const std::vector<Host>& hosts);
// Leaves what is not picked. InvalidArgument: nothing is left.
Result<std::vector<Host>> hosts_without(const std::vector<HostPick>& picks,
                                        const std::vector<Host>& hosts);

}  // namespace ivy
