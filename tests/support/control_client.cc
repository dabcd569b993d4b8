// SPDX-License-Identifier: Apache-2.0
#include "tests/support/control_client.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "tests/support/eventually.h"

namespace ivy::test {

Result<ControlClient> ControlClient::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return Error{Code::kInvalidArgument, "too long"};
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno_error(Code::kInternal, "socket", errno);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const Error error = errno_error(Code::kUnavailable, "connect to " + path, errno);
    close(fd);
    return error;
  }
  return ControlClient(fd);
}

ControlClient::ControlClient(ControlClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      received_fd_(std::exchange(other.received_fd_, -1)),
      slot_(other.slot_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      page_(std::exchange(other.page_, std::nullopt)) {}

ControlClient::~ControlClient() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  if (received_fd_ >= 0) close(received_fd_);
  if (fd_ >= 0) close(fd_);
}

bool ControlClient::send_packet(const std::string& packet) {
  return send(fd_, packet.data(), packet.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(packet.size());
}

int ControlClient::take_descriptor() { return std::exchange(received_fd_, -1); }

Result<control::Reply> ControlClient::receive(std::chrono::milliseconds deadline) {
  pollfd waiting{fd_, POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(scaled_time(deadline).count())) != 1)
    return Error{Code::kDeadlineExceeded, "no reply"};
  std::array<char, control::kMaxPacketBytes> buffer;
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> rights{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = rights.data();
  message.msg_controllen = rights.size();
  const ssize_t count = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  if (count <= 0) return Error{Code::kUnavailable, "the control socket was closed"};
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) {
    if (received_fd_ >= 0) close(received_fd_);
    std::memcpy(&received_fd_, CMSG_DATA(header), sizeof received_fd_);
  }
  return control::decode_reply(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
}

Result<control::Attached> ControlClient::attach(std::uint32_t rank, std::uint32_t generation) {
  send_packet(control::encode(
      control::Request(control::Attach{control::kWireVersion, rank, generation, getpid()})));
  const control::Reply reply = IVY_TRY(receive());
  if (const auto* rejected = std::get_if<control::Rejected>(&reply))
    return Error{rejected->code, rejected->text};
  const auto* attached = std::get_if<control::Attached>(&reply);
  if (attached == nullptr) return Error{Code::kDataLoss, "another reply"};
  const int fd = take_descriptor();
  bytes_ = attached->bytes;
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    return errno_error(Code::kInternal, "mmap", errno);
  }
  page_ = IVY_TRY(comm_status::StatusPage::open(memory_, bytes_));
  slot_ = attached->slot;
  slot().claim(rank, getpid());
  return *attached;
}

Result<int> ControlClient::segment(const control::Segment& segment) {
  send_packet(control::encode(control::Request(segment)));
  const control::Reply reply = IVY_TRY(receive());
  if (const auto* rejected = std::get_if<control::Rejected>(&reply))
    return Error{rejected->code, rejected->text};
  if (!std::holds_alternative<control::SegmentReady>(reply))
    return Error{Code::kDataLoss, "another reply"};
  return take_descriptor();
}

void ControlClient::report(const control::Report& report) {
  send_packet(control::encode(control::Request(report)));
}

Result<void> ControlClient::leave() {
  send_packet(control::encode(control::Request(control::Leave{})));
  const control::Reply reply = IVY_TRY(receive());
  if (!std::holds_alternative<control::Left>(reply)) return Error{Code::kDataLoss, "another reply"};
  return {};
}

bool ControlClient::wait_for_end(std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + scaled_time(deadline);
  while (std::chrono::steady_clock::now() < end) {
    const Result<control::Reply> reply = receive(std::chrono::milliseconds(50));
    if (!reply.ok() && reply.error().code == Code::kUnavailable) return true;
  }
  return false;
}

bool ControlClient::wait_for_event(const std::function<bool()>& condition,
                                   std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + scaled_time(deadline);
  for (;;) {
    const std::uint32_t seen = page_->event_count().load(std::memory_order_acquire);
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    const timespec slice{0, 100'000'000};
    syscall(SYS_futex, &page_->event_count(), FUTEX_WAIT, seen, &slice, nullptr, 0);
  }
}

}  // namespace ivy::test
