// SPDX-License-Identifier: Apache-2.0
#include "comm/group/world/control_client.h"

#include <sys/mman.h>

#include <cerrno>
#include <variant>

#include "comm/group/world/control_socket.h"
#include "proto/os/not_inherited.h"

namespace ivy::comm {

using std::chrono::milliseconds;

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
  const int socket = IVY_TRY(connect_to_supervisor(path));
  const auto give_up = [&](const Error& error) {
    not_inherited::close(socket);
    return error;
  };
  if (!send_request(socket, attach)) {
    return give_up(errno_error(Code::kUnavailable, "connect to the supervisor", errno));
  }
  const Result<ControlAnswer> answer = receive_answer(socket, at_most);
  if (!answer.ok()) return give_up(answer.error());
  const auto* attached = std::get_if<control::Attached>(&answer->reply);
  if (attached == nullptr || !answer->descriptor) return give_up(unexpected_answer(*answer));
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
  if (!send_request(socket_, request)) {
    return errno_error(Code::kUnavailable, "request shared memory from the supervisor", errno);
  }
  ControlAnswer answer = IVY_TRY(receive_answer(socket_, at_most));
  const auto* ready = std::get_if<control::SegmentReady>(&answer.reply);
  if (ready == nullptr || ready->name != request.name || !answer.descriptor) {
    return unexpected_answer(answer);
  }
  return answer.descriptor.release();
}

void ControlClient::report(const control::Report& report) {
  const std::lock_guard lock(mutex_);
  send_request(socket_, report);
}

void ControlClient::leave(milliseconds at_most) {
  const std::lock_guard lock(mutex_);
  if (!send_request(socket_, control::Leave{})) return;
  static_cast<void>(receive_answer(socket_, at_most));
}

}  // namespace ivy::comm
