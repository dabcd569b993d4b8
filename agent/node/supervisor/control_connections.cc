// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/control_connections.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/system/error_code.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "agent/node/spawn/job_directory.h"
#include "proto/os/listening_socket.h"
#include "proto/os/process.h"

namespace ivy {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr int kBacklog = 4096;  // Enough for all workers of a host to connect at the same time.
// Number of packets that are read from one connection before other connections are served.
constexpr int kPacketsPerTurn = 16;
// Number of turns that drain the full socket buffer of a process that has exited.
constexpr int kLastTurns = 64;
// Pause before the next accept if the process has no free descriptor.
constexpr std::chrono::milliseconds kAcceptPause{100};

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5: newer than the C library's headers.

// Returns true if the peer's end of the socket is closed.
bool has_hung_up(int socket_fd) {
  pollfd waiting{socket_fd, POLLRDHUP, 0};
  return poll(&waiting, 1, 0) > 0 && (waiting.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

// Returns a pidfd of the process that has connected, or an empty descriptor.
Descriptor peer_pidfd(int socket_fd, pid_t pid) {
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (getsockopt(socket_fd, SOL_SOCKET, kPeerPidfd, &pidfd, &length) == 0) return Descriptor(pidfd);
  if (errno != ENOPROTOOPT || pid <= 0) return Descriptor();
  // On older kernels, opens the pidfd by the peer's number. The number may belong to another
  // process by now, unless the peer's end of the socket is still open after that.
  Descriptor opened(open_pidfd(pid));
  return has_hung_up(socket_fd) ? Descriptor() : std::move(opened);
}

bool is_readable(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

}  // namespace

ControlConnections::ControlConnections(boost::asio::io_context& loop,
                                       ControlConnectionEvents& owner)
    : loop_(loop), owner_(owner), listener_(loop), accept_timer_(loop) {}

Result<void> ControlConnections::listen(const std::string& path) {
  if (!path_.empty() && !is_missing(path_)) return {};
  const Result<int> fd = listen_unix(path, SOCK_SEQPACKET, kBacklog);
  if (!fd.ok()) return fd.error().context("control socket");
  error_code ignored;
  accept_timer_.cancel();
  listener_.close(ignored);
  listener_.assign(*fd);
  path_ = path;
  accept();
  return {};
}

void ControlConnections::accept() {
  listener_.async_wait(stream_descriptor::wait_read, [this](const error_code& error) {
    if (error) return;
    if (accept_one()) return accept();
    // No descriptor is free, and the listener remains readable, so waiting for that would spin.
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](const error_code& cancelled) {
      if (!cancelled) accept();
    });
  });
}

bool ControlConnections::accept_one() {
  Descriptor fd(accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return true;
  // If no descriptor is free, gives up an unattached peer if there are too many of them, and
  // retries later.
  if (!fd) close_oldest_unattached();
  if (!fd) return false;
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != geteuid())
    return true;
  close_oldest_unattached();
  Descriptor pidfd = peer_pidfd(fd.get(), peer.pid);
  const auto connection = std::make_shared<ControlConnection>(loop_, fd.release());
  connection->pid = peer.pid;
  connection->pidfd = std::move(pidfd);
  connections_.push_back(connection);
  read(connection);
  return true;
}

// Closes the oldest connection that has not attached as a rank if there are kMaxUnattached of them.
// Processes that only observe never attach, and others may be idle or hostile.
void ControlConnections::close_oldest_unattached() {
  std::vector<Pointer> unattached;
  for (const Pointer& connection : connections_)
    if (!connection->slot) unattached.push_back(connection);
  if (unattached.size() >= kMaxUnattached) close(unattached.front());
}

void ControlConnections::read(const Pointer& connection) {
  connection->socket.async_wait(stream_descriptor::wait_read,
                                [this, connection](const error_code& error) {
                                  if (error || connection->is_closed) return;
                                  if (take_packets(connection)) return read(connection);
                                  close(connection);
                                });
}

bool ControlConnections::take_packets(const Pointer& connection) {
  std::array<char, control::kMaxPacketBytes + 1> buffer;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    // The kernel discards descriptors that a worker sends, because this call has no buffer for
    // them.
    const ssize_t count =
        recv(connection->socket.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0 || count > static_cast<ssize_t>(control::kMaxPacketBytes)) return false;
    const std::string_view packet(buffer.data(), static_cast<std::size_t>(count));
    if (!owner_.on_packet(connection, packet).ok() || connection->is_closed) return false;
  }
  return true;
}

void ControlConnections::read_rest(const Pointer& connection) {
  // Does not close the connection, even if it has ended; its pending read does that.
  for (int turn = 0; turn < kLastTurns; ++turn) {
    if (connection->is_closed || !is_readable(connection->socket.native_handle())) return;
    if (!take_packets(connection)) return;
  }
}

void ControlConnections::send(ControlConnection& connection, const control::Reply& reply, int fd) {
  if (connection.is_closed) return;
  std::string packet = control::encode(reply);
  iovec part{packet.data(), packet.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> rights{};
  if (fd >= 0) {
    message.msg_control = rights.data();
    message.msg_controllen = rights.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ssize_t count = 0;
  do {
    count = sendmsg(connection.socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (count < 0 && errno == EINTR);
  // Disconnects a worker that sends requests but never reads the answers; shutdown() also ends the
  // pending read.
  if (count < 0) shutdown(connection.socket.native_handle(), SHUT_RDWR);
}

void ControlConnections::close(const Pointer& connection) {
  if (std::exchange(connection->is_closed, true)) return;
  error_code ignored;
  connection->socket.close(ignored);
  // Keeps the connection alive: `connection` may refer to the pointer in the list, which is erased.
  const Pointer closed = connection;
  std::erase(connections_, closed);
  owner_.on_closed(*closed);
}

void ControlConnections::close_all() {
  for (const Pointer& connection : std::vector<Pointer>(connections_)) {
    connection->slot.reset();
    close(connection);
  }
}

}  // namespace ivy
