// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/admission.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "proto/os/socket_address.h"

namespace ivy::store {
namespace {

// Size of the shortest torch request that names a key: an opcode and the key's length.
constexpr ssize_t kMinRequestBytes = 9;

}  // namespace

std::optional<std::string> Admission::reject_torch(int fd, const std::string& host) {
  const bool is_listed =
      std::find(torch_peers_.begin(), torch_peers_.end(), host) != torch_peers_.end();
  if (!is_loopback(host) && !is_listed) return "it is not a host of this job";
  const PeerOwners::Owner owner = owners_.owner_of(fd);
  std::array<char, kMinRequestBytes> begin;
  switch (owner.location) {
    case PeerOwners::Location::kOtherHost:
      return std::nullopt;
    case PeerOwners::Location::kThisHost:
      if (owner.user == 0 || owner.user == geteuid()) return std::nullopt;
      return "it belongs to user " + std::to_string(owner.user) + ", but the job belongs to user " +
             std::to_string(geteuid());
    case PeerOwners::Location::kClosed:
      // A closed peer was a port scanner, unless it sent enough bytes for a request.
      if (recv(fd, begin.data(), begin.size(), MSG_PEEK | MSG_DONTWAIT) < kMinRequestBytes)
        return std::string();
      return "it closed before its owner could be determined, so it is not served";
    case PeerOwners::Location::kUnknown:
      break;
  }
  if (!std::exchange(has_logged_unknown_owners_, true)) {
    log_("the system does not report the owners of this host's connections (" +
         owners_.why_unknown() + "): every user of this host can be a client of torch's dialect");
  }
  return std::nullopt;
}

}  // namespace ivy::store
