// SPDX-License-Identifier: Apache-2.0
// The two sockets of this host's ranks. Peers of other users are rejected. The process ignores
// SIGPIPE.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy {

// The Unix socket at which ranks request their variables: a rank connects, writes "rank 3\n", and
// reads NAME=VALUE texts, each followed by a NUL, up to the end of file. A failure is one text that
// begins with "error: ". A slow or invalid peer does not affect the others. Thread: the caller of
// serve().
class RankSocket {
 public:
  struct Peer {
    pid_t process = 0;
    gid_t group = 0;
  };
  using Answer =
      std::function<Result<std::vector<std::string>>(std::uint32_t rank, const Peer& peer)>;

  // `listening` is a non-blocking Unix stream socket.
  RankSocket(Descriptor listening, Answer answer)
      : listening_(std::move(listening)), answer_(std::move(answer)) {}

  // Serves until one of these descriptors is closed or readable.
  Result<void> serve(const std::vector<int>& until);

 private:
  struct Requester {
    Descriptor socket;
    Peer peer;
    std::string received;
    std::int64_t deadline_ns = 0;
  };

  // Returns false if no connection can be accepted for now.
  bool accept_one();
  // Returns true while more data is expected from the peer.
  bool receive(Requester& requester) const;
  void reply(const Requester& requester, std::string_view line) const;
  std::vector<std::string> answer_for(std::string_view line, const Peer& peer) const;

  const Descriptor listening_;
  const Answer answer_;
  std::list<Requester> requesters_;
};

// Returns libpmix's port for this process of a rank; on an error the process is rejected. Called on
// the accepting thread.
using PortFor = std::function<Result<std::uint16_t>(pid_t process)>;

// Serves the port at which any MPI library in any process of this host's workers finds the PMIx
// server. The supervisor opened the port before the server started. Relays each connection to
// libpmix's own port, which is known once libpmix runs. Uses one thread that accepts and one per
// connection, until the process exits. `listening` is a TCP socket on loopback.
void relay_loopback(Descriptor listening, PortFor port_for);

}  // namespace ivy
