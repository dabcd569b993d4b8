// SPDX-License-Identifier: Apache-2.0
#include "tests/support/page_server.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <variant>

#include "proto/os/clock.h"
#include "proto/os/listening_socket.h"
#include "proto/wire/operation.h"

namespace ivy {
namespace {

void send_page(int connection, int page, std::size_t bytes) {
  std::string packet = control::encode(control::Reply(control::Observed{bytes}));
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) char rights[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = rights;
  message.msg_controllen = sizeof rights;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &page, sizeof page);
  sendmsg(connection, &message, MSG_NOSIGNAL);
}

std::string line_of(const comm_status::SlotView& slot, std::uint32_t row) {
  std::string line = slot.communicator_name(row) + ":";
  const auto current = slot.current(row);
  if (!current) return line + " nothing yet";
  const bool runs = current->outcome == comm_status::Outcome::kRunning;
  line += " " + std::string(comm_status::name_of(current->operation)) + " #" +
          std::to_string(current->sequence) + " " + std::to_string(current->count) + " " +
          std::string(comm_status::name_of(current->dtype)) + ", " +
          (runs ? std::string(comm_status::name_of(slot.phase(row))) : "over");
  const std::uint32_t peer = slot.tag_above(row);
  if (runs && peer != 0)
    line += std::string(peer & 1 ? ", sends to " : ", receives from ") +
            std::to_string((peer >> 1) - 1);
  const std::uint64_t end = runs ? static_cast<std::uint64_t>(monotonic_ns()) : current->ended_ns;
  return line + ", " + std::to_string((end - current->entered_ns) / 1000) + " us";
}

}  // namespace

PageServer::PageServer(std::string path) : path_(std::move(path)) {
  listener_.reset(listen_unix(path_, SOCK_SEQPACKET, 64).value());
  thread_ = std::thread([this] { serve(); });
}

PageServer::~PageServer() {
  is_over_.store(true);
  thread_.join();
  unlink(path_.c_str());
  for (const auto& [pid, page] : descriptors_) close(page.first);
}

void PageServer::serve() {
  constexpr int kLookMs = 20;
  while (!is_over_.load()) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (poll(&waiting, 1, kLookMs) <= 0) continue;
    Descriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection) answer(std::move(connection));
  }
}

void PageServer::answer(Descriptor connection) {
  char bytes[control::kMaxPacketBytes];
  const ssize_t count = recv(connection.get(), bytes, sizeof bytes, 0);
  if (count <= 0) return;
  const auto request =
      control::decode_request(std::string_view(bytes, static_cast<std::size_t>(count)));
  const auto* const observe = request.ok() ? std::get_if<control::Observe>(&*request) : nullptr;
  ucred peer{};
  socklen_t length = sizeof peer;
  getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
  if (observe == nullptr) return;
  const std::lock_guard lock(mutex_);
  auto& [descriptor, size] = descriptors_[peer.pid];
  if (size == 0) {
    const comm_status::PageShape shape{1, 1, 1, observe->generation};
    size = comm_status::StatusPage::bytes_of(shape).value();
    descriptor = memfd_create("ivy-status", MFD_CLOEXEC);
    void* const memory =
        ftruncate(descriptor, static_cast<off_t>(size)) != 0
            ? MAP_FAILED
            : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return;
    pages_.push_back({observe->rank, peer.pid, comm_status::StatusPage::format(memory, shape)});
  }
  send_page(connection.get(), descriptor, size);
}

std::vector<PageServer::Page> PageServer::pages() const {
  const std::lock_guard lock(mutex_);
  return pages_;
}

std::string PageServer::text() const {
  std::string text;
  for (const Page& each : pages())
    for (std::uint32_t row = 0; row < comm_status::kCommunicators; ++row)
      if (const auto slot = each.page.slot(0); !slot.communicator_name(row).empty())
        text += "rank " + std::to_string(each.rank) + ": " + line_of(slot, row) + "\n";
  return text;
}

}  // namespace ivy
