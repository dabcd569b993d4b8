// SPDX-License-Identifier: Apache-2.0
// Names and addresses. A name is looked up on another thread, with a bound. Thread: the loop's.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <string>
#include <vector>

#include "launcher/streams/sequence.h"
#include "proto/contract/status.h"

namespace ivy {

// Numeric, each once, in the resolver's order; at least one.
using Addresses = std::vector<std::string>;
using FoundAddresses = std::function<void(const Result<Addresses>&)>;

// A name server that has not answered by then does not answer.
inline constexpr std::chrono::seconds kResolveTimeout{5};
// Addresses kept of a name that has more.
inline constexpr std::size_t kMaxAddresses = 8;

// Calls back once, from the loop. Unavailable: there is no address, or the name server is silent.
void look_up_addresses(boost::asio::io_context& loop, boost::asio::thread_pool& resolvers,
                       const std::string& name, FoundAddresses found);
// The same as a coroutine. A numeric address resolves to itself immediately.
Awaitable<Result<Addresses>> addresses_of(Sequence& sequence, boost::asio::thread_pool& resolvers,
                                          std::string name);

// True for a numeric address, which needs no look-up, nor the threads for one.
bool is_numeric_address(const std::string& name);
// The numeric form of an address, IPv4 written as IPv4.
std::string numeric_address(const boost::asio::ip::address& address);
// Our own numeric address on the route to that one; empty when there is no route. Sends nothing.
std::string own_address_towards(const std::string& numeric);

// Both ends of a connection that another program opens (an ssh client).
struct PeerAddresses {
  std::string peer;  // Empty if it cannot be reached directly (the host is behind a jump host).
  std::string local;
};
// The first of these addresses to which there is a route.
PeerAddresses route_to(const Addresses& addresses);

}  // namespace ivy
