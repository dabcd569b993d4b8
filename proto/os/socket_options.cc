// SPDX-License-Identifier: Apache-2.0
#include "proto/os/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace ivy {

void disable_nagle(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void keep_alive(int fd, const KeepAlive& times) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &times.idle_s, sizeof times.idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &times.interval_s, sizeof times.interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times.probes, sizeof times.probes);
}

void set_user_timeout(int fd, unsigned unacknowledged_ms) {
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

}  // namespace ivy
