// SPDX-License-Identifier: Apache-2.0
#include "comm/join/store_listener.h"

#include <poll.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "comm/contract/resolve.h"
#include "comm/join/endpoint.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/os/listening_socket.h"
#include "proto/os/not_inherited.h"
#include "proto/os/process.h"
#include "proto/os/socket_address.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a busy port is retried: the store of a run that was just killed may still hold it.
constexpr milliseconds kPortBusy{1'500};
constexpr milliseconds kPortPause{20};

// Returns a range such as "15000-61000" if the kernel may assign this port to connections,
// otherwise an empty text.
std::string ports_given_away(std::uint16_t port) {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  unsigned first = 0;
  unsigned last = 0;
  file >> first >> last;
  if (!file || port < first || port > last) return {};
  return std::to_string(first) + "-" + std::to_string(last);
}

// Returns advice for when another program uses the port.
std::string advice_on_port(const Identity& identity) {
  if (identity.bootstrap_key.empty())
    return "another program uses that port: stop it, or choose another port";
  const std::string given_away = ports_given_away(identity.bootstrap_port);
  return "another program or connection uses that port, which is derived from the job's name and "
         "MASTER_PORT" +
         (given_away.empty() ? std::string()
                             : " (the kernel also assigns it to connections: "
                               "net.ipv4.ip_local_port_range is " +
                                   given_away + ")") +
         ": set another MASTER_PORT, or IVY_INIT_METHOD=tcp://HOST_OF_RANK_0:PORT";
}

// As listen_tcp(), but children of fork() do not inherit the socket.
Result<int> listen_here(const std::string& address, std::uint16_t port) {
  const std::unique_lock<std::mutex> guard = not_inherited::lock();
  Result<int> listening = listen_tcp(address, port);
  if (listening.ok()) not_inherited::add(*listening);
  return listening;
}

}  // namespace

StoreListener::~StoreListener() {
  if (socket_ >= 0) not_inherited::close(socket_);
}

Result<StoreListener> StoreListener::at(const std::string& address, std::uint16_t port) {
  StoreListener listener;
  listener.socket_ = IVY_TRY(listen_here(address, port));
  listener.own_ = with_port(address, bound_port(listener.socket_));
  listener.addresses_ = {listener.own_};
  return listener;
}

// Addresses that only this host can reach are last in the list for the others.
Result<StoreListener> StoreListener::everywhere(std::uint16_t port) {
  StoreListener listener;
  const Result<int> both = listen_here("::", port);
  if (both.ok()) {
    listener.socket_ = *both;
  } else {
    listener.socket_ = IVY_TRY(listen_here("0.0.0.0", port));
  }
  const std::uint16_t bound = bound_port(listener.socket_);
  listener.own_ = with_port("127.0.0.1", bound);
  for (const std::string& address : own_addresses()) {
    if (listener.addresses_.size() + 1 == kEndpointAddressesMax) break;
    listener.addresses_.push_back(with_port(address, bound));
  }
  listener.addresses_.push_back(listener.own_);
  return listener;
}

Result<StoreListener> StoreListener::at_given_host(const Identity& identity) {
  const std::string& host = identity.bootstrap_host;
  std::vector<std::string> addresses = IVY_TRY(resolve(host));
  const bool is_own_name = !is_numeric(host) && host != "localhost" &&
                           std::all_of(addresses.begin(), addresses.end(), is_loopback);
  // Debian's hosts file maps a machine's own name to 127.0.1.1, which no other host can reach.
  if (is_own_name) return everywhere(identity.bootstrap_port);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& address) { return !is_loopback(address); });
  Result<StoreListener> listener = Error{Code::kUnavailable, host + " has no address"};
  for (const std::string& address : addresses) {
    listener = at(address, identity.bootstrap_port);
    if (listener.ok() || listener.error().code == Code::kAlreadyExists) return listener;
  }
  return listener;
}

Result<StoreListener> StoreListener::at_address(const Identity& identity,
                                                steady_clock::time_point end) {
  const auto timeout = std::min(end, steady_now() + kPortBusy);
  Result<StoreListener> listener = at_given_host(identity);
  while (!listener.ok() && listener.error().code == Code::kAlreadyExists &&
         steady_now() < timeout) {
    poll(nullptr, 0, static_cast<int>(kPortPause.count()));
    listener = at_given_host(identity);
  }
  if (listener.ok()) return listener;
  Error error =
      listener.error().context("rank 0 on " + own_host_name() + " cannot open " +
                               with_port(identity.bootstrap_host, identity.bootstrap_port));
  error.fix = error.code == Code::kAlreadyExists
                  ? advice_on_port(identity)
                  : "check that this is an address of rank 0's host: the other ranks connect to it";
  return error;
}

// Listens on the address that this host uses to reach torchrun's store.
Result<StoreListener> StoreListener::towards(const Identity& identity) {
  const std::string own = IVY_TRY(own_address_towards(identity.bootstrap_host));
  if (is_loopback(own)) return everywhere(0);
  return at(own, 0);
}

Result<StoreListener> StoreListener::open(const Identity& identity, steady_clock::time_point end) {
  switch (identity.bootstrap) {
    case Bootstrap::kAddress:
      return at_address(identity, end);
    case Bootstrap::kTorchStore:
      return towards(identity);
    case Bootstrap::kHostFile:
      return at("127.0.0.1", 0);
    default:
      return everywhere(0);
  }
}

}  // namespace ivy::comm
