// SPDX-License-Identifier: Apache-2.0
// Formats the wait graph for people: the missing keys, the clients that wait for them and since
// when, and the clients that do not wait for them, with the length of their silence. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/engine/wait_graph.h"

namespace ivy::store {

// Returns at most 64 lines without the last newline, or one that starts with "store: no blocked
// requests" if no request waits. Clients are named "rank R", "pid P at ADDRESS"
// (launcher/hang/rank_names.h parses that) or "a client at ADDRESS:PORT".
std::string explain(const WaitGraph& graph, std::uint64_t now_ns);

// Returns the end of a timeout's text: the connected clients of that dialect that do not wait for
// any of its keys (or at its barrier), and how long each has been silent. `graph` still contains
// the wait.
std::string explain_absence(const WaitGraph& graph, const Waiting& overdue, std::uint64_t now_ns);

}  // namespace ivy::store
