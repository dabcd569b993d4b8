// SPDX-License-Identifier: Apache-2.0
// The socket at which this host's ranks ask for their variables: a rank connects, writes "rank
// 3\n", and reads NAME=VALUE texts with a NUL behind each, up to the end of file. A failure is one
// text that begins with "error: ".
//
// Thread: one, which serve() keeps. Peers of other users are refused; a peer that is slow or sends
// something else costs only itself. The process ignores SIGPIPE.
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

class RankSocket {
 public:
  struct Peer {
    pid_t process = 0;
    gid_t group = 0;
  };
  using Answer =
      std::function<Result<std::vector<std::string>>(std::uint32_t rank, const Peer& peer)>;

  // `listening` is a Unix stream socket that never blocks.
  RankSocket(Descriptor listening, Answer answer)
      : listening_(std::move(listening)), answer_(std::move(answer)) {}

  // Serves until one of these descriptors has ended or holds something to read.
  Result<void> serve(const std::vector<int>& until);

 private:
  struct Asker {
    Descriptor socket;
    Peer peer;
    std::string received;
    std::int64_t deadline_ns = 0;
  };

  void accept_one();
  // Returns true while more data is expected from it.
  bool hear(Asker& asker) const;
  void reply(const Asker& asker, std::string_view line) const;
  std::vector<std::string> answer_for(std::string_view line, const Peer& peer) const;

  const Descriptor listening_;
  const Answer answer_;
  std::list<Asker> askers_;
};

}  // namespace ivy
