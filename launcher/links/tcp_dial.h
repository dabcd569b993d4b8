// SPDX-License-Identifier: Apache-2.0
// Makes a TCP connection to a name and a port: looks the name up and tries each address, each
// within a time limit. Thread: the loop's; names are looked up on another thread.
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
  Descriptor socket;         // Connected and non-blocking.
  std::string peer_address;  // Both addresses are numeric, without a port.
  std::string local_address;
  // kUnresolved, kUnreachable or kRefused; there is no socket then.
  std::optional<LinkDown> failed;
  bool has_no_route = false;  // An attempt failed with EHOSTUNREACH.
};

struct DialLimits {
  std::chrono::milliseconds connect{10'000};  // For the only address, or the last one.
  // For an address while there are others to try.
  std::chrono::milliseconds connect_of_many{3'000};
};

Awaitable<Dialled> dial_tcp(Sequence& sequence, boost::asio::thread_pool& resolvers,
                            std::string host, std::uint16_t port, DialLimits limits);

}  // namespace ivy
