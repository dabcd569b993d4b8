// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/control_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/not_inherited.h"
#include "proto/os/socket_address.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

Descriptor take_descriptor(msghdr& message) {
  Descriptor first;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof number);
      Descriptor taken(number);
      if (!first) first = std::move(taken);
    }
  }
  return first;
}

}  // namespace

bool send_request(int socket, const control::Request& request) {
  const std::string packet = control::encode(request);
  ssize_t sent = 0;
  do {
    sent = send(socket, packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(packet.size());
}

Result<ControlAnswer> receive_answer(int socket, milliseconds at_most) {
  const std::uint64_t end =
      monotonic_ns() + static_cast<std::uint64_t>(at_most.count()) * 1'000'000;
  pollfd waiting = {socket, POLLIN, 0};
  int ready = -1;
  do {
    const std::uint64_t now = monotonic_ns();
    ready = poll(&waiting, 1, now < end ? static_cast<int>((end - now) / 1'000'000) : 0);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return Error{Code::kUnavailable, "the supervisor does not answer"};
  char bytes[control::kMaxPacketBytes];
  alignas(cmsghdr) char ancillary[CMSG_SPACE(4 * sizeof(int))];
  iovec part = {bytes, sizeof bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary;
  message.msg_controllen = sizeof ancillary;
  const ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (received <= 0) return Error{Code::kUnavailable, "the supervisor closed the control socket"};
  Descriptor descriptor = take_descriptor(message);
  control::Reply reply =
      IVY_TRY(control::decode_reply(std::string_view(bytes, static_cast<std::size_t>(received))));
  return ControlAnswer{std::move(reply), std::move(descriptor)};
}

Error unexpected_answer(const ControlAnswer& answer) {
  if (const auto* rejected = std::get_if<control::Rejected>(&answer.reply)) {
    return Error{rejected->code, "the supervisor rejected the request: " + rejected->text};
  }
  return Error{Code::kDataLoss, "the supervisor sent an unexpected answer"};
}

Result<int> connect_to_supervisor(const std::string& path) {
  SocketAddress address = unix_address(path);
  if (!address.is_valid()) {
    return Error{Code::kInvalidArgument, "IVY_CONTROL is too long for the path of a socket"};
  }
  const int descriptor =
      not_inherited::open([] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); });
  if (descriptor < 0) return errno_error(Code::kResourceExhausted, "create a socket", errno);
  if (::connect(descriptor, address.get(), address.size) != 0) {
    const int failed = errno;
    not_inherited::close(descriptor);
    return errno_error(Code::kUnavailable, "connect to the supervisor's control socket", failed);
  }
  return descriptor;
}

}  // namespace ivy::comm
