// SPDX-License-Identifier: Apache-2.0
// Decides whether an accepted connection may become a client of the store. torch's clients do not
// authenticate, so they must come from the job's hosts and, if they are on this host, belong to the
// same user or to root. Thread: the loop's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/os/peer_owner.h"
#include "rendezvous/server/limited_log.h"

namespace ivy::store {

class Admission {
 public:
  // `torch_peers` are numeric addresses that may use the torch socket; loopback always may.
  Admission(std::vector<std::string> torch_peers, LimitedLog& log)
      : torch_peers_(std::move(torch_peers)), log_(log) {}

  void admit(std::string address) { torch_peers_.push_back(std::move(address)); }
  // Returns the reason for rejecting a connection of torch's dialect, or nothing. An empty text is
  // a rejection that does not need a line in the log.
  std::optional<std::string> reject_torch(int fd, const std::string& host);

 private:
  std::vector<std::string> torch_peers_;
  LimitedLog& log_;
  PeerOwners owners_;
  bool has_logged_unknown_owners_ = false;
};

}  // namespace ivy::store
