// The role `ivy-rendezvous leaf`: a host's leaf in a process of its own. The same server as the
// store's stands towards the clients of the host, greets them with the store's epoch and puts what
// they ask to a Leaf (leaf.h).
//
//   dialling --welcome--> serving --the store is lost, or another generation--> dialling
//
// While it dials nobody is taken: clients wait in the backlog, and those that were there have seen
// their connections end, as they would have seen the store's. A store that has lost its contents
// has another epoch, and its clients learn that from the greeting.
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
  std::string root;     // "10.0.0.1:4123", of the store's native socket.
  int control_fd = -1;  // As in serve.h; -1: by hand.
  std::vector<int> native_fds;
  std::vector<int> torch_fds;  // Of loopback only.
  ServerLimits limits;
};

// Until "quit", SIGTERM or the end of the control descriptor. Returns the process's exit code.
// InvalidArgument: the address of the store.
Result<int> run_leaf(LeafStart start);

}  // namespace ivy::store
