// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/loopback_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>
#include <thread>
#include <utility>

#include "agent/pmix/rank_process.h"
#include "proto/os/files.h"
#include "proto/os/peer_owner.h"
#include "proto/os/socket_address.h"
#include "proto/os/socket_options.h"

namespace ivy {
namespace {

constexpr std::size_t kBlockBytes = 64u << 10;

Descriptor connect_to(std::uint16_t port) {
  SocketAddress address = parse_address("127.0.0.1", port);
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), address.get(), address.size) != 0) return Descriptor();
  send_at_once(fd.get());
  return fd;
}

// False at the end of what comes from there.
bool pass_on(int from, int to) {
  std::array<char, kBlockBytes> bytes;
  const ssize_t count = recv(from, bytes.data(), bytes.size(), 0);
  if (count < 0 && errno == EINTR) return true;
  if (count > 0 && write_all(to, std::string_view(bytes.data(), static_cast<std::size_t>(count))))
    return true;
  shutdown(to, SHUT_WR);
  return false;
}

// libpmix reads on both sides whatever it writes, so that waiting for one side blocks nothing.
void relay(const Descriptor& rank, const Descriptor& server) {
  std::array<pollfd, 2> ends = {pollfd{rank.get(), POLLIN, 0}, pollfd{server.get(), POLLIN, 0}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends.data(), ends.size(), -1) < 0 && errno != EINTR) return;
    if (ends[0].revents != 0 && !pass_on(rank.get(), server.get())) ends[0].fd = -1;
    if (ends[1].revents != 0 && !pass_on(server.get(), rank.get())) ends[1].fd = -1;
    ends[0].revents = ends[1].revents = 0;
  }
}

void serve(Descriptor rank, const PortFor& port_for, PeerOwners& owners) {
  const PeerOwners::Owner owner = owners.of(rank.get());
  if (owner.where != PeerOwners::Where::kHere || owner.user != geteuid()) return;
  const Result<std::uint16_t> port = port_for(process_with_socket(owner.inode));
  Descriptor server = port.ok() ? connect_to(*port) : Descriptor();
  if (!server) return;
  send_at_once(rank.get());
  std::thread([rank = std::move(rank), server = std::move(server)] {
    relay(rank, server);
  }).detach();
}

void accept_all(const Descriptor& listening, const PortFor& port_for) {
  PeerOwners owners;
  for (;;) {
    Descriptor rank(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (rank)
      serve(std::move(rank), port_for, owners);
    else if (errno != EINTR && errno != ECONNABORTED)
      return;
  }
}

}  // namespace

void relay_loopback(Descriptor listening, PortFor port_for) {
  fcntl(listening.get(), F_SETFL, 0);  // Its thread waits in accept().
  std::thread([listening = std::move(listening), port_for = std::move(port_for)] {
    accept_all(listening, port_for);
  }).detach();
}

}  // namespace ivy
