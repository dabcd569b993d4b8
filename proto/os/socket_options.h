// What our TCP sockets have in common, whoever opened them. An option that the kernel refuses is
// left as it is. Thread: any.
#pragma once

namespace ivy {

// Messages here are whole: none waits for the next one to fill a packet.
void send_at_once(int fd);

// When the kernel asks a silent peer whether it is there, and how often before the connection
// breaks.
struct KeepAlive {
  int idle_s = 0;
  int interval_s = 0;
  int probes = 0;
};
void keep_alive(int fd, const KeepAlive& times);

// How long the peer may leave what was sent unacknowledged before the connection breaks.
void break_after(int fd, unsigned unacknowledged_ms);

}  // namespace ivy
