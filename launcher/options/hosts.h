// SPDX-License-Identifier: Apache-2.0
// Parses the hosts that the user specified. Pure: text to hosts. Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/host_ranges.h"
#include "proto/contract/status.h"

namespace ivy {

// One host as written. The order of hosts is the order of ranks, always.
struct Host {
  std::string name;          // As typed: a name or a numeric address without brackets.
  std::string user;          // Empty where none was written.
  std::uint16_t port = 0;    // SSH port; 0: not written.
  std::optional<int> slots;  // Written slots (a:4, slots=4); repeated entries of a host add up.
  std::optional<int> max_slots = {};  // max_slots=4: more workers than this are rejected.
  // --include h:0,2 and --exclude h:1: its places are these alone, or all but these. They number
  // its accelerators, where it has any.
  std::vector<int> only_places = {};
  std::vector<int> without_places = {};
  std::optional<int> fake;  // --fake-hosts: number of this pretended host, 0..N-1.
  bool joins = false;       // torchrun mode: its own ivyrun brings it.
  std::string origin;       // "-H", or "file:line", for messages.

  bool operator==(const Host&) const = default;
};

// "h1:4,user@h2,node[01-08,10],[::1]:2,a:22:4". Bracket ranges keep the padding of their first
// number; several brackets expand with the last varying fastest. `host:N` is slots N; a port is
// written "host:port=2222" or by --ssh-port. A host that appears twice is one host with both slots.
// Errors name the column and the text.
Result<std::vector<Host>> parse_host_list(std::string_view text, const std::string& origin);

// A hostfile: per line `host[:slots]`, `host slots=N [max_slots=N] [port=N] [user=NAME]`, `host N`
// (LSF) or a host range; '#' starts a comment; one line per slot (PBS) adds up; "h:1 slots=2" is
// refused. Errors read "file:line:column: what". An empty file is an error. `path` is only for
// messages.
Result<std::vector<Host>> parse_hostfile(std::string_view content, const std::string& path);
// A hostfile of these hosts, a line for each, which parse_hostfile() reads again.
std::string hostfile_text(const std::vector<Host>& hosts);

// `count` pretended hosts named fake0, fake1, ...
std::vector<Host> fake_hosts(int count);

}  // namespace ivy
