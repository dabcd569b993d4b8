// SPDX-License-Identifier: Apache-2.0
// Tests whether a rank can be reached at the address where its NCCL will listen. NCCL itself would
// wait for an answer for a minute or for ever, and names no rank. Only sockets of our own are
// tried, never NCCL's: a rank listens while the ranks get ready, and its neighbours in NCCL's ring
// connect.
//
// Thread: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/nccl/preflight.h"
#include "proto/contract/status.h"
#include "proto/os/descriptor.h"

namespace ivy::comm::nccl {

// Listens at one address until it is destroyed. It accepts no connection: the kernel's answer is
// enough.
class ProbeListener {
 public:
  // On any port, numeric IPv4 or IPv6. 0: it cannot listen there, so no rank may try.
  std::uint16_t listen_at(const std::string& address);

 private:
  Descriptor fd_;
};

// Connects and hangs up. The error says why it cannot: "no answer in 2000 ms", "Network is
// unreachable".
Result<void> try_address(const std::string& address, std::uint16_t port,
                         std::chrono::milliseconds patience);

// Tries to connect to those of `others` that are in another network than `own`, each address once,
// all at the same time. Empty: all answer; else what is wrong with the first that does not.
std::string try_peers(const RankFacts& own, const std::vector<RankFacts>& others,
                      std::chrono::milliseconds patience);

}  // namespace ivy::comm::nccl
