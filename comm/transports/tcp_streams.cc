#include "comm/transports/tcp_streams.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <string_view>

#include "proto/contract/text.h"

namespace ivy::comm {

Result<std::uint32_t> wanted_streams(const char* text) {
  if (text == nullptr || *text == '\0') return std::uint32_t{0};
  const std::string_view digits = text;
  const std::uint32_t streams = to_number<std::uint32_t>(digits).value_or(0);
  if (streams < 1 || streams > kStreamsMax) {
    return Error{Code::kInvalidArgument, "IVY_TCP_STREAMS is " + std::string(digits) +
                                             "; it must be a number from 1 to " +
                                             std::to_string(kStreamsMax)};
  }
  return streams;
}

bool is_on_this_machine(int socket) {
  sockaddr_storage own = {};
  sockaddr_storage peer = {};
  socklen_t own_length = sizeof own;
  socklen_t peer_length = sizeof peer;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0 ||
      own.ss_family != peer.ss_family) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(own).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr;
  }
  return own.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(own).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, sizeof(in6_addr)) == 0;
}

std::size_t bite_of(int socket) {
  char name[16] = {};  // The kernel's limit for it.
  socklen_t length = sizeof name;
  const bool is_known = getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0;
  return is_known && std::strncmp(name, "bbr", 3) == 0 ? kPacedBite : kBite;
}

}  // namespace ivy::comm
