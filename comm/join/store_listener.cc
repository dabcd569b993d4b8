#include "comm/join/store_listener.h"

#include <poll.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "comm/contract/resolve.h"
#include "comm/join/endpoint.h"
#include "comm/transports/peer_listener.h"
#include "proto/os/listening_socket.h"
#include "proto/os/not_inherited.h"
#include "proto/os/process.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A store of an earlier run that was killed a moment ago still has the port.
constexpr milliseconds kPortBusy{1'500};
constexpr milliseconds kPortPause{20};

// "15000-61000", where the kernel gives this port to connections; else empty.
std::string ports_given_away(std::uint16_t port) {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  unsigned first = 0;
  unsigned last = 0;
  file >> first >> last;
  if (!file || port < first || port > last) return {};
  return std::to_string(first) + "-" + std::to_string(last);
}

// What to do if another program has the port.
std::string advice_on_port(const Identity& identity) {
  if (identity.meeting_key.empty())
    return "another program has that port: stop it, or choose another port";
  const std::string given_away = ports_given_away(identity.meeting_port);
  return "another program or connection has that port, which comes of the job's name and "
         "MASTER_PORT" +
         (given_away.empty() ? std::string()
                             : " (the kernel gives it to connections, too: "
                               "net.ipv4.ip_local_port_range is " +
                                   given_away + ")") +
         ": set another MASTER_PORT, or IVY_INIT_METHOD=tcp://HOST_OF_RANK_0:PORT";
}

// As listen_tcp().
Result<int> listen_here(const std::string& address, std::uint16_t port) {
  const std::unique_lock<std::mutex> guard = not_inherited::lock();
  Result<int> listening = listen_tcp(address, port);
  if (listening.ok()) not_inherited::add(*listening);
  return listening;
}

}  // namespace

Door::~Door() {
  if (socket_ >= 0) not_inherited::close(socket_);
}

Result<Door> Door::at(const std::string& address, std::uint16_t port) {
  Door door;
  door.socket_ = IVY_TRY(listen_here(address, port));
  door.own_ = address_with_port(address, port_of(door.socket_));
  door.addresses_ = {door.own_};
  return door;
}

// The addresses that only this host can reach come last in what the others are told.
Result<Door> Door::everywhere(std::uint16_t port) {
  Door door;
  const Result<int> both = listen_here("::", port);
  if (both.ok()) {
    door.socket_ = *both;
  } else {
    door.socket_ = IVY_TRY(listen_here("0.0.0.0", port));
  }
  const std::uint16_t bound = port_of(door.socket_);
  door.own_ = address_with_port("127.0.0.1", bound);
  for (const std::string& address : own_addresses()) {
    if (door.addresses_.size() + 1 == kNoteAddressesMax) break;
    door.addresses_.push_back(address_with_port(address, bound));
  }
  door.addresses_.push_back(door.own_);
  return door;
}

Result<Door> Door::where_told(const Identity& identity) {
  const std::string& host = identity.meeting_host;
  std::vector<std::string> addresses = IVY_TRY(resolve(host));
  const bool is_own_name = !is_numeric(host) && host != "localhost" &&
                           std::all_of(addresses.begin(), addresses.end(), is_loopback);
  // Debian's hosts file has a machine's own name at 127.0.1.1, which no other host can reach.
  if (is_own_name) return everywhere(identity.meeting_port);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& address) { return !is_loopback(address); });
  Result<Door> door = Error{Code::kUnavailable, host + " has no address"};
  for (const std::string& address : addresses) {
    door = at(address, identity.meeting_port);
    if (door.ok() || door.error().code == Code::kAlreadyExists) return door;
  }
  return door;
}

Result<Door> Door::at_address(const Identity& identity, steady_clock::time_point end) {
  const auto patience = std::min(end, steady_clock::now() + kPortBusy);
  Result<Door> door = where_told(identity);
  while (!door.ok() && door.error().code == Code::kAlreadyExists &&
         steady_clock::now() < patience) {
    poll(nullptr, 0, static_cast<int>(kPortPause.count()));
    door = where_told(identity);
  }
  if (door.ok()) return door;
  Error error =
      door.error().context("rank 0 on " + own_host_name() + " cannot open " +
                           address_with_port(identity.meeting_host, identity.meeting_port));
  error.fix = error.code == Code::kAlreadyExists
                  ? advice_on_port(identity)
                  : "is that an address of rank 0's host? The others look for it there";
  return error;
}

// Listens on the address by which this host reaches torchrun's store.
Result<Door> Door::towards(const Identity& identity) {
  const std::string own =
      IVY_TRY(own_address_towards(address_with_port(identity.meeting_host, identity.meeting_port)));
  if (is_loopback(own)) return everywhere(0);
  return at(own, 0);
}

Result<Door> Door::open(const Identity& identity, steady_clock::time_point end) {
  switch (identity.meeting) {
    case Meeting::kAddress:
      return at_address(identity, end);
    case Meeting::kTorchStore:
      return towards(identity);
    case Meeting::kHostFile:
      return at("127.0.0.1", 0);
    default:
      return everywhere(0);
  }
}

}  // namespace ivy::comm
