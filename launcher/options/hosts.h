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

// One host as written. The order of hosts is always the order of ranks.
struct Host {
  std::string name;          // As typed: a name or a numeric address without brackets.
  std::string user;          // Empty if not written.
  std::uint16_t port = 0;    // SSH port; 0 if not written.
  std::optional<int> slots;  // Written slots (a:4, slots=4); repeated entries of a host add up.
  std::optional<int> max_slots = {};  // max_slots=4: more workers than this are rejected.
  // --include h:0,2 and --exclude h:1: only these slots of the host, or all others. They are
  // numbers of its accelerators, if it has any.
  std::vector<int> only_devices = {};
  std::vector<int> excluded_devices = {};
  std::optional<int> fake;  // --fake-hosts: number of this simulated host, 0..N-1.
  bool joins = false;       // torchrun mode: the host joins through its own ivyrun.
  std::string origin;       // "-H", or "file:line", for messages.

  bool operator==(const Host&) const = default;
};

// Parses "h1:4,user@h2,node[01-08,10],[::1]:2,a:22:4". Bracket ranges keep the zero padding of
// their first number; of several brackets the last varies fastest. `host:N` means N slots; a port
// is written "host:port=2222" or set with --ssh-port. A host that appears twice is one host with
// the sum of the slots. Errors contain the column and the text.
Result<std::vector<Host>> parse_host_list(std::string_view text, const std::string& origin);

// Parses a hostfile. A line is `host[:slots]`, `host slots=N [max_slots=N] [port=N] [user=NAME]`,
// `host N` (LSF) or a host range. '#' starts a comment, and repeated lines for a host (PBS) add up.
// Rejects "h:1 slots=2" and an empty file. Errors read "file:line:column: what"; `path` is only
// used in messages.
Result<std::vector<Host>> parse_hostfile(std::string_view content, const std::string& path);
// Parses the output of --hosts-from, whose grammar is that of a hostfile. Errors read
// "--hosts-from:line:column: what", and each has a fix.
Result<std::vector<Host>> parse_command_hosts(std::string_view output);
// Writes these hosts as a hostfile, one per line, which parse_hostfile() can read.
std::string hostfile_text(const std::vector<Host>& hosts);

// Returns `count` simulated hosts named fake0, fake1, ...
std::vector<Host> fake_hosts(int count);

}  // namespace ivy
