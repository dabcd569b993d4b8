// SPDX-License-Identifier: Apache-2.0
// Options that all TCP sockets of ivyrun share. An option that the kernel rejects keeps its old
// value. Thread: any.
#pragma once

namespace ivy {

// Disables Nagle's algorithm: messages are complete and must not wait for later ones to fill a
// packet.
void disable_nagle(int fd);

// When the kernel probes a silent peer, and how many failed probes break the connection.
struct KeepAlive {
  int idle_s = 0;
  int interval_s = 0;
  int probes = 0;
};
void keep_alive(int fd, const KeepAlive& times);

// Limits how long sent data may stay unacknowledged before the connection breaks.
void set_user_timeout(int fd, unsigned unacknowledged_ms);

}  // namespace ivy
