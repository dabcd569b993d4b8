// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/address_lookup.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <utility>

#include "proto/os/descriptor.h"

namespace ivy {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using udp = asio::ip::udp;

namespace {

// Any port will do: connecting a UDP socket only consults the routing table and sends nothing.
constexpr std::uint16_t kAnyPort = 9;

Error no_address(const std::string& name, const std::string& why) {
  return {Code::kUnavailable, "cannot resolve " + name + ": " + why,
          "check the spelling, or try: getent hosts " + name};
}

Result<Addresses> resolve(const std::string& name) {
  asio::io_context here;
  tcp::resolver resolver(here);
  boost::system::error_code error;
  Addresses addresses;
  for (const auto& entry : resolver.resolve(name, "", error)) {
    const std::string address = numeric_address(entry.endpoint().address());
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(address);
    }
  }
  if (addresses.empty())
    return no_address(name,
                      error == asio::error::host_not_found ? "no such name" : error.message());
  if (addresses.size() > kMaxAddresses) addresses.resize(kMaxAddresses);
  return addresses;
}

// A lookup and its time limit; the one that ends first calls back. Owned by the wait for the limit.
struct Lookup {
  Lookup(asio::io_context& loop, FoundAddresses answered)
      : timer(loop, kResolveTimeout), found(std::move(answered)) {}
  void finish(const Result<Addresses>& addresses) {
    timer.cancel();
    if (found) std::exchange(found, {})(addresses);
  }
  asio::steady_timer timer;
  FoundAddresses found;
};

}  // namespace

void look_up_addresses(asio::io_context& loop, asio::thread_pool& resolvers,
                       const std::string& name, FoundAddresses found) {
  const auto lookup = std::make_shared<Lookup>(loop, std::move(found));
  lookup->timer.async_wait([lookup, name](const boost::system::error_code& ended) {
    if (!ended) lookup->finish(no_address(name, "the name server did not respond in time"));
  });
  asio::post(resolvers,
             [weak = std::weak_ptr(lookup), name, &loop, work = asio::make_work_guard(loop)] {
               const Result<Addresses> addresses = resolve(name);
               asio::post(loop, [weak, addresses] {
                 if (const auto waiting = weak.lock()) waiting->finish(addresses);
               });
             });
}

Awaitable<Result<Addresses>> addresses_of(Sequence& sequence, asio::thread_pool& resolvers,
                                          std::string name) {
  if (is_numeric_address(name)) co_return Addresses{name};
  const auto start = [&](const Arrival<Result<Addresses>>& arrive) {
    look_up_addresses(sequence.loop(), resolvers, name, arrive);
  };
  co_return co_await sequence.wait<Result<Addresses>>(start);
}

bool is_numeric_address(const std::string& name) {
  boost::system::error_code error;
  asio::ip::make_address(name, error);
  return !error;
}

std::string numeric_address(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

std::string own_address_towards(const std::string& numeric) {
  boost::system::error_code error;
  udp::endpoint end(asio::ip::make_address(numeric, error), kAnyPort);
  if (error) return {};
  const Descriptor socket(::socket(end.protocol().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || connect(socket.get(), end.data(), static_cast<socklen_t>(end.size())) != 0)
    return {};
  auto size = static_cast<socklen_t>(end.capacity());
  if (getsockname(socket.get(), end.data(), &size) != 0) return {};
  return numeric_address(end.address());
}

PeerAddresses route_to(const Addresses& addresses) {
  for (const std::string& address : addresses) {
    const std::string own = own_address_towards(address);
    if (!own.empty()) return PeerAddresses{address, own};
  }
  return {};
}

}  // namespace ivy
