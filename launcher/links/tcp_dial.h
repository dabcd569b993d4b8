// SPDX-License-Identifier: Apache-2.0
// From a name and a port to a connected TCP socket: every address is tried, each wait has a bound.
// Thread: the loop's (names are looked up on another thread).
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launcher/links/address_lookup.h"
#include "launcher/links/host_link.h"
#include "launcher/streams/sequence.h"
#include "proto/os/descriptor.h"

namespace ivy {

struct Dialled {
  Descriptor socket;         // It is connected and non-blocking.
  std::string peer_address;  // Both addresses are numeric, without a port.
  std::string local_address;
  std::optional<LinkDown> failed;  // kUnresolved, kUnreachable or kRefused; no socket then.
};

struct DialLimits {
  std::chrono::milliseconds connect{10'000};
  // One address while there are others to try.
  std::chrono::milliseconds connect_of_many{3'000};
};

Awaitable<Dialled> dial_tcp(Sequence& sequence, boost::asio::thread_pool& resolvers,
                            std::string host, std::uint16_t port, DialLimits limits);

}  // namespace ivy
