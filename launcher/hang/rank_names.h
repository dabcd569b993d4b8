// SPDX-License-Identifier: Apache-2.0
// Adds ranks to the store's explanations: the store knows torch's clients only by process and
// address, but the launcher knows which rank that process is. Pure. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "proto/wire/ctl.pb.h"

namespace ivy {

// Returns the store's explanation (rendezvous/engine/explanation.h) with "rank R (host H, pid P)"
// for every "pid P at ADDRESS" that can be only one rank's own process. With several hosts, appends
// the host and its ranks to other clients whose address belongs to one host only. Leaves uncertain
// clients unchanged. If every client is known to be a rank, a key's line ends with the ranks that
// are not connected. A last line names the ranks that have exited, which will write nothing more.
std::string explain_ranks(std::string_view explanation, const ctl::StoreDescription& store);

// Indents every line by two columns.
std::string indented(std::string_view text);

}  // namespace ivy
