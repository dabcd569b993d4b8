// SPDX-License-Identifier: Apache-2.0
// Finds the user who owns the other end of a TCP connection. torch's clients and MPI libraries
// cannot authenticate, but if both ends are sockets of this host, the kernel knows the user of
// each.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "proto/os/descriptor.h"

namespace ivy {

class PeerOwners {
 public:
  enum class Location {
    kThisHost,   // A socket of this host (of this network namespace), owned by `user`.
    kOtherHost,  // A socket of another host.
    kClosed,     // A socket of this host that was closed already, so its owner is unknown.
    kUnknown,    // This kernel does not report owners; why_unknown() has the reason.
  };
  struct Owner {
    Location location = Location::kUnknown;
    uid_t user = 0;
    std::uint32_t inode = 0;  // Inode of the peer's socket, as shown in /proc/PID/fd.
  };

  PeerOwners();

  // Returns the owner of the peer of a connected TCP socket.
  Owner of(int fd);
  const std::string& why_unknown() const { return why_unknown_; }

 private:
  struct Ends;
  struct Found;
  Found query_socket(const Ends& ends);

  const Descriptor netlink_;
  std::string why_unknown_;
};

}  // namespace ivy
