// The role `ivy-rendezvous leaf`: a host's leaf in a process of its own. The same server as the
// store's faces the clients of the host, greets them with the store's epoch and passes their
// requests to a Leaf (leaf.h).
//
//   dialling --welcome--> serving --the store is lost, or another generation--> dialling
//
// While it dials it accepts no clients: new ones wait in the backlog, and the earlier ones have
// seen their connections end, as they would have seen the store's. A store that has lost its
// contents has another epoch, and its clients learn that from the greeting.
//
// Thread: the process's only one; dialling blocks it for a second at most.
#pragma once

#include <string>

#include "proto/contract/status.h"
#include "rendezvous/server/serve_options.h"

namespace ivy::store {

// Runs until "quit", SIGTERM or the end of the control descriptor. Returns the process's exit code;
// InvalidArgument if the address of the store is wrong.
Result<int> run_leaf(ServeOptions options, const std::string& token);

}  // namespace ivy::store
