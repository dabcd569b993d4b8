// SPDX-License-Identifier: Apache-2.0
// Parsers of the two small languages in Slurm's variables: node lists and counts per node. Pure;
// thread: any.
//
//   list  := item { ',' item }                   commas inside brackets do not split
//   item  := name | text '[' ranges ']' { text '[' ranges ']' }       nothing follows the last ']'
//   ranges := low [ '-' high ] { ',' low [ '-' high ] }
//   counts := count [ '(x' times ')' ] { ',' count [ '(x' times ')' ] }
//
// Source: `scontrol show hostnames` of Slurm 22.05, with which the tests compare. scontrol also
// accepts texts that Slurm never writes (an unclosed bracket, empty items, blanks); here they are
// errors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

// Returns the names of SLURM_JOB_NODELIST in order. Numbers are padded like the first one of their
// range. Of several brackets the last varies fastest, then the first, the second and so on, as in
// Slurm. Keeps duplicates. The message of InvalidArgument contains the text and the column. Limits:
// kMaxHosts names, kMaxHostListBytes characters (proto/contract/host_ranges.h).
Result<std::vector<std::string>> parse_nodelist(std::string_view text);

// Parses SLURM_JOB_CPUS_PER_NODE: "2(x3),1" is 2, 2, 2, 1. At most kMaxHosts numbers.
Result<std::vector<int>> parse_node_counts(std::string_view text);

// Formats names for parse_nodelist(): they keep their order ("n[01-03,10,9]"), and only a number at
// the end of a name is folded.
std::string nodelist_text(const std::vector<std::string>& names);
// Formats numbers for parse_node_counts().
std::string node_counts_text(const std::vector<int>& counts);

}  // namespace ivy
