#include "agent/node/supervisor/control_peer.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "proto/os/process.h"

namespace ivy {
namespace {

// Newer than the C library's headers.
constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5.

// struct pidfd_info, its first version; Linux 6.13, `exit_code` 6.15.
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup_id;
  std::uint32_t ids[11];
  std::int32_t exit_code;  // As waitpid's status.
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);
constexpr std::uint64_t kPidfdInfoExit = 1u << 3;

bool has_hung_up(int socket_fd) {
  pollfd waiting{socket_fd, POLLRDHUP, 0};
  return poll(&waiting, 1, 0) > 0 && (waiting.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

int peer_pidfd(int socket_fd, pid_t pid) {
  int pidfd = -1;
  socklen_t length = sizeof pidfd;
  if (getsockopt(socket_fd, SOL_SOCKET, kPeerPidfd, &pidfd, &length) == 0) return pidfd;
  if (errno != ENOPROTOOPT || pid <= 0) return -1;
  // The pidfd is opened by number, which could be another process's by now, but not while the
  // peer's end of the socket is open.
  pidfd = open_pidfd(pid);
  if (pidfd >= 0 && has_hung_up(socket_fd)) {
    close(pidfd);
    return -1;
  }
  return pidfd;
}

}  // namespace

Result<ControlPeer> peer_of(int socket_fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return errno_error(Code::kInternal, "control socket: credentials of the peer", errno);
  ControlPeer peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.pidfd = peer_pidfd(socket_fd, credentials.pid);
  return peer;
}

std::optional<ExitStatus> exit_status_by_pidfd(int pidfd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (ioctl(pidfd, kPidfdGetInfo, &info) != 0 || (info.mask & kPidfdInfoExit) == 0)
    return std::nullopt;
  const int status = info.exit_code;
  if (WIFSIGNALED(status)) return ExitStatus{.signal = WTERMSIG(status)};
  return ExitStatus{.code = WEXITSTATUS(status)};
}

}  // namespace ivy
