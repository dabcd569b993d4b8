// Whose the other end of a TCP connection is. torch's clients cannot authenticate, but where both
// ends are sockets of this host the kernel knows the user of each.
#pragma once

#include <sys/types.h>

#include <string>

namespace ivy::store {

class PeerOwners {
 public:
  enum class Where {
    kHere,       // A socket of this host (of this network namespace), of that user.
    kElsewhere,  // Of another host.
    kGone,       // Of this host, but closed already: of whom it was is not known.
    kUnknown,    // This kernel does not tell; why_unknown() says more.
  };
  struct Owner {
    Where where = Where::kUnknown;
    uid_t user = 0;
  };

  PeerOwners();
  ~PeerOwners();
  PeerOwners(const PeerOwners&) = delete;
  PeerOwners& operator=(const PeerOwners&) = delete;

  // Of a connected TCP socket.
  Owner of(int fd);
  const std::string& why_unknown() const { return why_unknown_; }

 private:
  struct Ends;
  struct Found;
  Found look_up(const Ends& ends);

  int netlink_ = -1;
  std::string why_unknown_;
};

}  // namespace ivy::store
