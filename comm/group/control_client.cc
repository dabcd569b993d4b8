#include "comm/group/control_client.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/os/not_inherited.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;

struct Answer {
  control::Reply reply;
  int descriptor = -1;  // The receiver's to close.
};

bool send_packet(int socket, const std::string& packet) {
  ssize_t sent = 0;
  do {
    sent = send(socket, packet.data(), packet.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(packet.size());
}

int take_descriptor(msghdr& message) {
  int taken = -1;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof descriptor);
      if (taken < 0) {
        taken = descriptor;
      } else {
        close(descriptor);
      }
    }
  }
  return taken;
}

Result<Answer> receive(int socket, milliseconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most;
  while (true) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    pollfd waiting = {socket, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return Error{Code::kUnavailable, "the supervisor does not answer"};
    break;
  }
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
  const int descriptor = take_descriptor(message);
  Result<control::Reply> reply =
      control::decode_reply(std::string_view(bytes, static_cast<std::size_t>(received)));
  if (!reply.ok()) {
    if (descriptor >= 0) close(descriptor);
    return reply.error();
  }
  return Answer{std::move(reply).value(), descriptor};
}

Error unexpected(const Answer& answer) {
  if (answer.descriptor >= 0) close(answer.descriptor);
  if (const auto* refused = std::get_if<control::Refused>(&answer.reply)) {
    return Error{refused->code, "the supervisor refused: " + refused->text};
  }
  return Error{Code::kDataLoss, "the supervisor answered something else"};
}

Result<int> connect_to(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error{Code::kInvalidArgument, "IVY_CONTROL is longer than a socket's path may be"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int descriptor =
      not_inherited::open([] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); });
  if (descriptor < 0) return errno_error(Code::kResourceExhausted, "make a socket", errno);
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
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
  if (attached == nullptr || answer->descriptor < 0) return give_up(unexpected(*answer));
  void* const memory =
      mmap(nullptr, attached->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, answer->descriptor, 0);
  close(answer->descriptor);
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
  const Answer answer = IVY_TRY(receive(socket_, at_most));
  const auto* ready = std::get_if<control::SegmentReady>(&answer.reply);
  if (ready == nullptr || ready->name != request.name || answer.descriptor < 0) {
    return unexpected(answer);
  }
  return answer.descriptor;
}

void ControlClient::report(const control::Report& report) {
  const std::lock_guard lock(mutex_);
  send_packet(socket_, control::encode(control::Request(report)));
}

void ControlClient::leave(milliseconds at_most) {
  const std::lock_guard lock(mutex_);
  if (!send_packet(socket_, control::encode(control::Request(control::Leave{})))) return;
  const Result<Answer> answer = receive(socket_, at_most);
  if (answer.ok() && answer->descriptor >= 0) close(answer->descriptor);
}

}  // namespace ivy::comm
