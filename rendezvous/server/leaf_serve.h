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

#include <cstdint>
#include <string>
#include <vector>

#include "proto/contract/status.h"
#include "rendezvous/server/server.h"

namespace ivy::store {

struct LeafStart {
  std::string job_id;
  std::string token;
  std::uint32_t generation = 0;
  std::string root;     // The store's native socket, "10.0.0.1:4123".
  int control_fd = -1;  // As in serve.h; -1: none.
  std::vector<int> native_fds;
  std::vector<int> torch_fds;  // On loopback only.
  ServerLimits limits;
};

// Runs until "quit", SIGTERM or the end of the control descriptor. Returns the process's exit code;
// InvalidArgument if the address of the store is wrong.
Result<int> run_leaf(LeafStart start);

}  // namespace ivy::store
