// SPDX-License-Identifier: Apache-2.0
// The wait graph as text for people: the missing keys, the clients that wait for them and for how
// long, and the ranks that have been silent since. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/engine/wait_graph.h"

namespace ivy::store {

// Returns several lines without the last newline; "store: no blocked requests" if there are none.
// At most 64 lines. Clients are "rank R", "pid P at ADDRESS" (launcher/hang/rank_names.h reads
// that) or "a client at ADDRESS:PORT".
std::string explain(const WaitGraph& graph, std::uint64_t now_ns);

// Returns the end of a timeout's text: the connected clients of that dialect that wait for none of
// its keys (or not at its barrier), and how long each has been silent. `graph` still contains the
// wait.
std::string explain_absence(const WaitGraph& graph, const Waiting& overdue, std::uint64_t now_ns);

}  // namespace ivy::store
