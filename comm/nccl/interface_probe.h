// SPDX-License-Identifier: Apache-2.0
// Tests whether a rank can be reached at the address where its NCCL will listen. NCCL itself would
// wait for an answer for a minute or for ever, and its errors name no rank. The probe uses separate
// sockets, before NCCL has any: each rank listens during the bootstrap (nccl_bootstrap.h), and its
// neighbours in NCCL's ring connect.
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

// Listens at one address until it is destroyed. It accepts no connections, because the kernel
// completes them without that.
class ProbeListener {
 public:
  // Listens on a free port of a numeric IPv4 or IPv6 address, and returns the port. Returns 0 if
  // that fails; the other ranks then do not probe this one.
  std::uint16_t listen_at(const std::string& address);

 private:
  Descriptor fd_;
};

// Connects and hangs up. An error gives the reason: "no answer within 2000 ms", "Network is
// unreachable".
Result<void> try_address(const std::string& address, std::uint16_t port,
                         std::chrono::milliseconds timeout);

// Connects, at the same time, to all of `others` that listen in another network than `own`. Returns
// an empty text if all of them answer, or else the error of the first that does not.
std::string try_peers(const RankFacts& own, const std::vector<RankFacts>& others,
                      std::chrono::milliseconds timeout);

}  // namespace ivy::comm::nccl
