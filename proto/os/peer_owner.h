// SPDX-License-Identifier: Apache-2.0
// Asks the kernel which user owns the other end of a TCP connection, to keep other users of this
// host out of a job. torch's clients and MPI libraries cannot authenticate, but if both ends are
// sockets of this host, the kernel knows the user of each. Not thread-safe.
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
  // `user` and `inode` are only known if the location is kThisHost.
  struct Owner {
    Location location = Location::kUnknown;
    uid_t user = 0;
    std::uint32_t inode = 0;  // Inode of the peer's socket, as shown in /proc/PID/fd.
  };

  // Returns the owner of the peer of a connected TCP socket.
  Owner owner_of(int fd);
  // The reason of the last kUnknown, for messages.
  const std::string& why_unknown() const { return why_unknown_; }

 private:
  Descriptor netlink_;  // Opened by the first call that can.
  std::string why_unknown_;
};

}  // namespace ivy
