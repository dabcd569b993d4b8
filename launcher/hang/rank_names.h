// SPDX-License-Identifier: Apache-2.0
// Adds ranks to the store's explanations: the store knows torch's clients only by process and
// address, but the launcher knows which rank that process is. Pure. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "proto/wire/ctl.pb.h"

namespace ivy {

// The store's explanation (rendezvous/engine/explanation.h) with "rank R (host H, pid P)" for every
// "pid P at ADDRESS" that is exactly one rank's own process; with several hosts, the host and
// its ranks are appended to other clients whose address belongs to one host only. Uncertain clients
// are left unchanged. If every client is known to be a rank, a key's line ends with the ranks that
// are not connected. A last line names the ranks that have exited, which will write nothing more.
std::string explain_ranks(std::string_view explanation, const ctl::StoreDescription& store);

// Indents every line by two columns.
std::string indented(std::string_view text);

}  // namespace ivy
