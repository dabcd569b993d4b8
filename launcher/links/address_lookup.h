// SPDX-License-Identifier: Apache-2.0
// Name lookup and numeric addresses. Names are looked up on another thread, with a time limit.
// Thread: the loop's.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <string>
#include <vector>

#include "launcher/streams/sequence.h"
#include "proto/contract/status.h"

namespace ivy {

// Numeric addresses without duplicates, in the resolver's order; at least one.
using Addresses = std::vector<std::string>;
using FoundAddresses = std::function<void(const Result<Addresses>&)>;

// Time limit of a lookup.
inline constexpr std::chrono::seconds kResolveTimeout{5};
// Addresses beyond this number are ignored.
inline constexpr std::size_t kMaxAddresses = 8;

// Looks a name up and calls `found` once, from the loop. Unavailable: the name has no address, or
// the name server does not answer.
void look_up_addresses(boost::asio::io_context& loop, boost::asio::thread_pool& resolvers,
                       const std::string& name, FoundAddresses found);
// Runs look_up_addresses() as a coroutine. Returns a numeric address immediately.
Awaitable<Result<Addresses>> addresses_of(Sequence& sequence, boost::asio::thread_pool& resolvers,
                                          std::string name);

// True for a numeric address, which needs no lookup and no thread for one.
bool is_numeric_address(const std::string& name);
// Returns the numeric form of an address. An IPv4 address in IPv6 form is written as IPv4.
std::string numeric_address(const boost::asio::ip::address& address);
// Returns this machine's address on the route to `numeric`; empty if there is no route. Sends
// nothing.
std::string own_address_towards(const std::string& numeric);

// The addresses of both ends of a connection that another program opens (an ssh client).
struct PeerAddresses {
  // Empty if the host cannot be reached directly, because it is behind a jump host.
  std::string peer;
  std::string local;
};
// Returns the first of these addresses to which there is a route, and this machine's address on it.
PeerAddresses route_to(const Addresses& addresses);

}  // namespace ivy
