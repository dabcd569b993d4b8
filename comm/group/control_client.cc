#include "comm/group/control_client.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/not_inherited.h"
#include "proto/os/socket_address.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

struct Answer {
  control::Reply reply;
  Descriptor descriptor;  // The one that came with it, or none.
};

bool send_packet(int socket, const std::string& packet) {
  ssize_t sent = 0;
  do {
    sent = send(socket, packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(packet.size());
}

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

Result<Answer> receive(int socket, milliseconds at_most) {
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
  return Answer{std::move(reply), std::move(descriptor)};
}

Error unexpected(const Answer& answer) {
  if (const auto* refused = std::get_if<control::Refused>(&answer.reply)) {
    return Error{refused->code, "the supervisor refused: " + refused->text};
  }
  return Error{Code::kDataLoss, "the supervisor answered something else"};
}

Result<int> connect_to(const std::string& path) {
  SocketAddress address = unix_address(path);
  if (!address.is_valid()) {
    return Error{Code::kInvalidArgument, "IVY_CONTROL is longer than a socket's path may be"};
  }
  const int descriptor =
      not_inherited::open([] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); });
  if (descriptor < 0) return errno_error(Code::kResourceExhausted, "make a socket", errno);
  if (::connect(descriptor, address.get(), address.size) != 0) {
    const int failed = errno;
    not_inherited::close(descriptor);
    return errno_error(Code::kUnavailable, "connect to the supervisor's control socket", failed);
  }
  return descriptor;
}

}  // namespace

ControlClient::ControlClient(int socket, void* memory, std::size_t bytes,
                             comm_status::StatusPage page, std::uint32_t slot)
    : socket_(socket), memory_(memory), bytes_(bytes), page_(page), slot_(slot) {}

ControlClient::~ControlClient() {
  munmap(memory_, bytes_);
  not_inherited::close(socket_);
}

Result<std::unique_ptr<ControlClient>> ControlClient::connect(const std::string& path,
                                                              const control::Attach& attach,
                                                              milliseconds at_most) {
  const int socket = IVY_TRY(connect_to(path));
  const auto give_up = [&](const Error& error) {
    not_inherited::close(socket);
    return error;
  };
  if (!send_packet(socket, control::encode(control::Request(attach)))) {
    return give_up(errno_error(Code::kUnavailable, "greet the supervisor", errno));
  }
  const Result<Answer> answer = receive(socket, at_most);
  if (!answer.ok()) return give_up(answer.error());
  const auto* attached = std::get_if<control::Attached>(&answer->reply);
  if (attached == nullptr || !answer->descriptor) return give_up(unexpected(*answer));
  void* const memory = mmap(nullptr, attached->bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            answer->descriptor.get(), 0);
  if (memory == MAP_FAILED) {
    return give_up(errno_error(Code::kResourceExhausted, "map the status page", errno));
  }
  Result<comm_status::StatusPage> page = comm_status::StatusPage::open(memory, attached->bytes);
  if (!page.ok()) {
    munmap(memory, attached->bytes);
    return give_up(page.error());
  }
  return std::unique_ptr<ControlClient>(
      new ControlClient(socket, memory, attached->bytes, *page, attached->slot));
}

Result<int> ControlClient::segment(const control::Segment& request, milliseconds at_most) {
  const std::lock_guard lock(mutex_);
  if (!send_packet(socket_, control::encode(control::Request(request)))) {
    return errno_error(Code::kUnavailable, "ask the supervisor for shared memory", errno);
  }
  Answer answer = IVY_TRY(receive(socket_, at_most));
  const auto* ready = std::get_if<control::SegmentReady>(&answer.reply);
  if (ready == nullptr || ready->name != request.name || !answer.descriptor) {
    return unexpected(answer);
  }
  return answer.descriptor.release();
}

void ControlClient::report(const control::Report& report) {
  const std::lock_guard lock(mutex_);
  send_packet(socket_, control::encode(control::Request(report)));
}

void ControlClient::leave(milliseconds at_most) {
  const std::lock_guard lock(mutex_);
  if (!send_packet(socket_, control::encode(control::Request(control::Leave{})))) return;
  static_cast<void>(receive(socket_, at_most));
}

}  // namespace ivy::comm
