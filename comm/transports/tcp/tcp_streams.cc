// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/tcp/tcp_streams.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <string>
#include <string_view>

#include "proto/contract/text.h"
#include "proto/os/socket_address.h"

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
  const sockaddr_storage own = own_address(socket).storage;
  const sockaddr_storage peer = peer_address(socket).storage;
  return (own.ss_family == AF_INET || own.ss_family == AF_INET6) &&
         own.ss_family == peer.ss_family && host_text(own) == host_text(peer);
}

std::size_t chunk_bytes_of(int socket) {
  char name[16] = {};  // The kernel's limit for it.
  socklen_t length = sizeof name;
  const bool is_known = getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0;
  return is_known && std::strncmp(name, "bbr", 3) == 0 ? kPacedChunkBytes : kChunkBytes;
}

}  // namespace ivy::comm
